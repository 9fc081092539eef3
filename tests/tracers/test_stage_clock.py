"""Stages and modules on a clock that ticks once for each look at it."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from costproof.models.specs import Run
from costproof.tracers import timing
from costproof.tracers.timing import time_modules, time_stages


class Page(nn.Module):
    """A tower, and a head that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2]."""
        found: torch.Tensor = self.head(self.head(self.tower(x)))
        return found


def locate(path: str, call: int) -> tuple[str, str]:
    return ("vision" if path.startswith("tower") else "text", "once")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    ticks = count()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks)))
    return Run("page", Page().eval(), {"x": torch.zeros(2)}, locate)


def test_a_module_has_the_time_that_no_module_in_it_has(run: Run) -> None:
    # Looks: into the root, the tower, its first, back, its second, back, the root, the head, the root, the head, the
    # root, the end. Each time runs to the next look.
    assert time_modules([run], 2) == {
        ("page", "text", ""): (4, 4),
        ("page", "vision", "tower"): (3, 3),
        ("page", "vision", "tower.0"): (1, 1),
        ("page", "vision", "tower.1"): (1, 1),
        ("page", "text", "head"): (2, 2),
    }


def test_a_stage_is_looked_at_where_it_begins_and_ends(run: Run) -> None:
    # Into the root, the tower, back, the end.
    assert {(s.stage, s.time.runs) for s in time_stages([run], 1)} == {("text", (2,)), ("vision", (1,))}


class Turns(nn.Module):
    """Its head runs every other time, as an expert may."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2]."""
        self.calls += 1
        found: torch.Tensor = self.head(x) if self.calls % 2 else x
        return found


def test_a_module_that_does_not_run_each_time_takes_nothing_then(run: Run) -> None:
    turns = Run("page", Turns().eval(), {"x": torch.zeros(2)}, locate)
    # The first call warms up; the head runs in the second of two more.
    assert time_modules([turns], 2) == {("page", "text", ""): (1, 2), ("page", "text", "head"): (0, 1)}
