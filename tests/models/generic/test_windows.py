"""Caches with sliding windows: what a layer holds, and which steps have a sum in closed form."""

from __future__ import annotations

import pytest

from costproof.ledger.workload import Workload
from costproof.models.generic.cache_probe import CacheLayer, OwnCache
from costproof.models.generic.inputs import Inputs
from costproof.models.generic.stages import Cached


def plan(first: int, steps: int, *windows: int | None) -> Cached:
    """A cache of one layer for each window."""
    layers = tuple(CacheLayer((2, 8), (2, 8), window) for window in windows)
    return Cached(Workload("w", first, steps), OwnCache(layers=layers), Inputs({}, ()))


@pytest.mark.parametrize(
    ("context", "window", "held", "grows"),
    [(5, None, 5, True), (5, 8, 5, True), (6, 8, 6, True), (7, 8, 7, False), (20, 8, 7, False)],
)
def test_what_a_layer_holds(context: int, window: int | None, held: int, *, grows: bool) -> None:
    layer = CacheLayer((2, 8), (2, 8), window)
    assert (layer.held(context), layer.grows(context)) == (held, grows)


@pytest.mark.parametrize(
    ("first", "steps", "windows", "said"),
    [
        (5, 2, (8,), ""),
        (5, 3, (8,), "pass the end of a sliding window"),
        (7, 3, (8, None), ""),
        (7, 1, (8,), ""),
        (7, 2, (8, 8), "behind the end of every sliding window"),
        (1, 2, (None,), ""),
        (0, 2, (None,), "too short"),
        (3, 0, (None,), ""),
    ],
)
def test_runs_without_a_sum(first: int, steps: int, windows: tuple[int | None, ...], said: str) -> None:
    found = plan(first, steps, *windows).problems()
    assert bool(found) == bool(said)
    assert all(said in str(problem) for problem in found)
