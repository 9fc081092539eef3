"""Counters that add up children below parents, on a module with three of them."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch._dynamo  # before a tool patches functions that it wraps
from torch import nn

from costproof.tracers.counters.protocol import Counted
from costproof.tracers.counters.tools import positional


class Holder(nn.Module):
    """A module that has another one's."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        out: torch.Tensor = self.part(x)
        return out


class Shared(nn.Module):
    """One linear layer of 64 x 64 below three parents, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(64, 64)
        self.one, self.two = Holder(self.part), Holder(self.part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it in each place."""
        out: torch.Tensor = self.two(self.one(self.part(x)))
        return out


MACS, BIASES = 3 * 5 * 64 * 64, 3 * 5 * 64
"""Of three calls on five rows; each counter has its own unit."""


@pytest.mark.parametrize(
    ("name", "total", "again"),
    [
        # Module and biases below three parents, and the patched product of every call once more.
        ("ptflops", 3 * (MACS + BIASES) + MACS, {"linear": 2 * MACS, "bias": 2 * BIASES}),
        ("calflops", 3 * 2 * MACS, {"linear": 2 * 2 * MACS}),
    ],
)
def test_a_module_with_several_parents(name: str, total: int, again: dict[str, int]) -> None:
    pytest.importorskip(name)
    counter = getattr(importlib.import_module("costproof.tracers.counters.tools"), name)
    with torch.device("meta"):
        found: Counted = counter(*positional(Shared(), {"x": torch.empty(5, 64)}))
    assert found.total == total
    assert all(r.module or not r.value for r in found.rows)
    said = {k: sum(r.value for r in found.rows if r.kind == f">{k}") for k in again}
    assert said == again
    assert {r.module for r in found.rows if r.kind.startswith(">")} == {"one.part", "two.part"}
