"""Ways to a shape: joined they lead to the same points, and what was known of an axis is asked anew when it moves."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from costproof.parametric.concolic import BranchCondition, PathCondition, merge_paths

NAMES = ("a", "b", "c", "d")


def asked(name: str, outcome: bool) -> BranchCondition:
    """Whether a variable is less than 1: with values of 0 and 1, whether it is 0."""
    return BranchCondition("<", ("var", name), ("int", 1), outcome)


def leads(ways: list[PathCondition], point: dict[str, int]) -> bool:
    """By hand: of one way everything comes out as it says."""
    return any(all((point[c.left[1]] < 1) is c.outcome for c in way.conditions) for way in ways)


def test_ways_that_part_at_one_comparison_are_one() -> None:
    # b, and not b with c, and not b without c: whatever b and c are.
    ways = [
        PathCondition([asked("a", True), asked("b", True)]),
        PathCondition([asked("a", True), asked("b", False), asked("c", True)]),
        PathCondition([asked("a", True), asked("b", False), asked("c", False)]),
    ]
    (one,) = merge_paths(ways)
    assert one.conditions == (asked("a", True),)
    assert len(merge_paths(ways[:2])) == 2
    assert [w.conditions for w in merge_paths([ways[1], PathCondition([asked("a", True)])])] == [(asked("a", True),)]


@pytest.mark.parametrize("seed", range(200))
def test_joined_ways_lead_to_the_same_points(seed: int) -> None:
    rng = random.Random(seed)
    ways = [
        PathCondition(asked(name, rng.random() < 0.5) for name in rng.sample(NAMES, rng.randint(0, 4)))
        for _ in range(rng.randint(1, 9))
    ]
    made = merge_paths(ways)
    for values in product((0, 1), repeat=len(NAMES)):
        point = dict(zip(NAMES, values, strict=True))
        assert leads(made, point) == leads(ways, point) == any(way.holds(point) for way in made)
        arrays = {name: np.array([[value]]) for name, value in point.items()}
        assert any(np.all(way.mask(arrays)) for way in made) == leads(ways, point)


def test_an_axis_that_moves_is_asked_anew() -> None:
    way = PathCondition([asked("a", True), asked("b", True)])
    a, b = np.array([[0], [1]]), np.array([[0, 1, 0]])
    assert way.mask({"a": a, "b": b}).tolist() == [[True, False, True], [False, False, False]]
    assert way.mask({"a": a, "b": np.array([[1, 1, 1]])}) is False
    assert way.mask({"a": np.array([[0], [0]]), "b": b}).tolist() == [[True, False, True]]
    assert way.mask({"a": np.array([[0]]), "b": np.array([[0]])}) is True


def test_a_condition_on_two_axes_is_asked_when_either_moves() -> None:
    way = PathCondition([BranchCondition("<", ("+", ("var", "a"), ("var", "b")), ("int", 3), True)])
    a, b = np.array([[0], [2]]), np.array([[0, 1]])
    assert way.mask({"a": a, "b": b}).tolist() == [[True, True], [True, False]]
    assert way.mask({"a": a, "b": np.array([[0, 0]])}) is True
    assert way.mask({"a": np.array([[2], [0]]), "b": b}).tolist() == [[True, False], [True, True]]
