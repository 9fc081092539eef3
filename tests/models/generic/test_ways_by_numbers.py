"""Models whose numbers say which part runs, or where a number lies; and parts that a forward casts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import costproof
from costproof.ledger.metrics import Metric

DEVICES = ("meta", "cpu")


def said(found: costproof.Counted, metric: Metric) -> set[int | None]:
    return {ledger.total(metric) for ledger in found.capture.ledgers}


class Cast(nn.Module):
    """Scores its input in float32, whatever the type of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scores = self.scores.to(torch.float32)
        result: torch.Tensor = self.scores(x.float())
        return result


@pytest.mark.parametrize("device", DEVICES)
def test_a_part_that_a_forward_casts_is_cast_for_it_alone(device: str) -> None:
    model = Cast().to(device, torch.bfloat16)
    weight = model.scores.weight
    found = costproof.count(model, torch.ones(2, 6, dtype=torch.bfloat16, device=device))
    assert found.verdict == "exact", found.sentence
    assert said(found, "flops") == {2 * 2 * 6 * 3}
    # Read as it lies in memory.
    assert said(found, "weight_read_bytes") == {6 * 3 * 2}
    assert model.scores.weight is weight
    assert weight.dtype == torch.bfloat16


class Named(nn.Module):
    """Runs the parts of whose numbers there are any, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({f"part_{i}": nn.Linear(4, 4, bias=False) for i in range(3)})

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        for i in torch.bincount(which, minlength=3).nonzero():
            x = self.parts[f"part_{i[0]}"](x)
        return x


def test_a_number_may_name_a_part() -> None:
    # Without numbers all are ones, and one part runs.
    which = torch.ones(3, dtype=torch.long, device="meta")
    found = costproof.count(Named().to("meta"), torch.ones(5, 4, device="meta"), which)
    assert found.verdict == "exact", found.sentence
    assert said(found, "flops") == {2 * 5 * 4 * 4}


class Placed(nn.Module):
    """Leaves out of its input what lies where rows of single numbers say."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2, bias=False)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows, columns = zip(*places, strict=True)
        kept = torch.ones_like(x, dtype=torch.bool)
        kept[rows, columns] = False
        result: torch.Tensor = self.out(torch.where(kept, x, 0)) * x[rows, columns].sum()
        return result


@pytest.mark.parametrize("device", DEVICES)
def test_places_may_be_single_numbers(device: str) -> None:
    places = torch.ones(3, 2, dtype=torch.long, device=device)
    found = costproof.count(Placed().to(device), torch.ones(5, 4, device=device), places)
    assert found.verdict == "exact", found.sentence
    assert said(found, "flops") == {2 * 5 * 4 * 2}
    # Three numbers are added up, and ten multiplied.
    assert said(found, "vector_flops") == {3 + 10}
