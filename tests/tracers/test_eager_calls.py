"""Both clocks of an eager run, on a stub of a GPU with planted times, and from events written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from costproof.estimate.clocks import stage_clocks
from costproof.models.specs import Run
from costproof.tracers import device_benchmark, replay, stage_variants  # noqa: F401  # patched by the stub
from costproof.tracers.eager_calls import measure_calls, scale_to
from costproof.tracers.timing import time_stage_clocks
from tests.support.stub_cuda import Planted, StubCuda, plant, stub_cuda


class Page(nn.Module):
    """A tower of two products, and a head that may look at a number."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
        self.head = nn.Linear(4, 2)
        self.looks = looks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 4]."""
        result: torch.Tensor = self.head(self.tower(x))
        if self.looks and result.sum().item() > 1e9:
            result = result * 2
        return result + 1


def page(*, looks: bool = False) -> Run:
    def locate(path: str, call: int) -> tuple[str, str]:
        return ("vision", "once") if path.startswith("tower") else ("text", "once")

    return Run("page", Page(looks).eval(), {"x": torch.ones(3, 4)}, locate)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCuda]:
    with stub_cuda(monkeypatch) as made:
        yield made


@pytest.mark.parametrize("inflation", [0, 700])
def test_planted_times_come_back(stub: StubCuda, inflation: int) -> None:
    stub.inflation = inflation
    one = page()
    times, host = time_stage_clocks([one], 3)
    calls = measure_calls([one], host)
    for stage, pieces in calls["page"]:
        print(stage, pieces)
    clocks = stage_clocks(calls["page"], 2_000)
    print(times, host, clocks)
