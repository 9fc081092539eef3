"""What a call writes over its inputs: bytes by hand, from both sources."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from costproof.api import count


class Writes(nn.Module):
    """Writes, and returns a sum."""

    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(x)
        return x.sum()


class Inside(nn.Module):
    """One that writes inside of another module, which doubles the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Writes(lambda x: x.add_(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = self.inner(x) * 2
        return doubled


# x is 4 x 8 x 4 = 128 bytes, a sum 4.
CASES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "nothing": (lambda: Writes(lambda x: x.add(1)), 4, 128 + 4),
    "all": (lambda: Writes(lambda x: x.add_(1)), 128 + 4, 128 + 128 + 4),
    "several times": (lambda: Writes(lambda x: x.add_(1).mul_(2).sub_(3)), 128 + 4, 128 + 128 + 4),
    "half": (lambda: Writes(lambda x: x[:2].add_(1)), 64 + 4, 128 + 64 + 4),
    "all, then half": (lambda: Writes(lambda x: x.add_(1)[:2].mul_(2)), 128 + 4, 128 + 128 + 4),
    "all of a view": (lambda: Writes(lambda x: x.view(-1).add_(1)), 128 + 4, 128 + 128 + 4),
    # the inner sum goes to the outer module, and is inside of the floor
    "inside": (Inside, 128 + 4 + 4, 128 + 128 + 4),
}


@pytest.mark.parametrize("which", CASES)
def test_what_is_written_over_an_input_is_written(which: str) -> None:
    make, written, floor = CASES[which]
    report = count(make(), torch.ones(4, 8))
    assert report.verdict == "exact"
    for source in ("static", "dynamic"):
        ledger = report.capture.ledger(source)
        assert ledger.stage_total("forward", "output_bytes") == written
        assert ledger.stage_total("forward", "floor_bytes") == floor
