"""What each installed counter says of four small layers, as JSON on stdout.

A process of its own, as in real runs: some of the tools leave patched functions behind, which others then see.
TorchLens wraps every function of torch for good, so it comes last.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from costproof.tracers.counters.protocol import COUNTERS
from costproof.tracers.counters.tools import positional


class Attention(nn.Module):
    """Fused attention of x with itself. Some tools look for the device of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, heads, s, d] -> the same."""
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Whole(nn.Module):
    """Calls its part with a positional argument, as models do."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the part returns."""
        result: torch.Tensor = self.part(x)
        return result


LAYERS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]] = {
    "linear": (lambda: nn.Linear(6, 4), (2, 5, 6)),
    "conv": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (1, 3, 8, 8)),
    "norm": (lambda: nn.LayerNorm(6), (2, 5, 6)),
    "sdpa": (Attention, (1, 2, 5, 4)),
}


def said(name: str, layer: str) -> tuple[int, list[tuple[str, str, int]]]:
    """Total and rows."""
    make, shape = LAYERS[layer]
    with torch.device("meta"):
        model, args = positional(Whole(make()), {"x": torch.empty(shape)})
    found = COUNTERS.load(name).count(model, args)
    return found.total, [(r.module, r.kind, r.value) for r in found.rows]


if __name__ == "__main__":
    print(json.dumps({f"{name} {layer}": said(name, layer) for name in sys.argv[1:] for layer in LAYERS}))
