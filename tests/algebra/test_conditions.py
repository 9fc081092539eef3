"""Conditions on integer sizes: merged ones select the same sizes as all of them, and none can be left out."""

from __future__ import annotations

import random
from itertools import product

import pytest
import sympy

from costproof.algebra.conditions import Condition, merge_bounds
from costproof.algebra.symbols import sym

B, S = sym("B"), sym("S")
SIZES = range(1, 61)


def not_equal(left: sympy.Expr, right: sympy.Expr | int) -> sympy.Expr:
    return sympy.expand(left - right) ** 2 - 1


def equal(left: sympy.Expr, right: sympy.Expr | int) -> sympy.Expr:
    return -(sympy.expand(left - right) ** 2)


@pytest.mark.parametrize(
    ("margins", "texts"),
    [
        ([S - 5, not_equal(S, 5)], ["S >= 6"]),
        ([S - 5, not_equal(S, 5), not_equal(S, 6), not_equal(S, 9)], ["S >= 7", "S != 9"]),
        ([not_equal(S, 5), S - 5, 5 - S + 2], ["S >= 6", "S <= 7"]),
        ([9 - S, not_equal(S, 9), not_equal(S, 100)], ["S <= 8"]),
        ([S - 3, not_equal(S, 2)], ["S >= 3"]),
        ([S - 4, 4 - S], ["S == 4"]),
        ([S - 4, 6 - S, not_equal(S, 4), not_equal(S, 6)], ["S == 5"]),
        ([equal(S, 8), S - 3], ["S == 8"]),
        ([2 * S - 9], ["S >= 5"]),
        ([2 * B * S - 9, not_equal(B * S, 5)], ["B*S >= 6"]),
        ([not_equal(2 * S, 9)], []),
        ([not_equal(2 * S, 8)], ["S != 4"]),
        ([sympy.Min(S - 3, 20 - S, evaluate=False), not_equal(S, 3)], ["S >= 4", "S <= 20"]),
        ([3 * B - 3 * S - 7, not_equal(B, S)], ["B >= S + 3"]),
    ],
)
def test_merged_conditions_as_text(margins: list[sympy.Expr], texts: list[str]) -> None:
    assert [Condition.from_margin(m).text for m in merge_bounds(margins)] == texts


def test_bounds_are_rounded_to_steps() -> None:
    found = merge_bounds([S - 5, 70 - S, not_equal(S, 6), not_equal(S, 64), not_equal(S, 16)], {"S": 8})
    assert [Condition.from_margin(m).text for m in found] == ["S >= 8", "S <= 56", "S != 16"]


def held(margins: list[sympy.Expr] | tuple[sympy.Expr, ...]) -> set[tuple[int, ...]]:
    """The pairs of sizes at which all margins are at least 0."""
    functions = [sympy.lambdify((B, S), m, modules="math") for m in margins]
    return {at for at in product(SIZES, repeat=2) if all(f(*at) >= 0 for f in functions)}


def drawn(rng: random.Random) -> sympy.Expr:
    of, number, times = rng.choice([S, B, B * S, B + S, 2 * B - 3 * S]), rng.randint(0, 40), rng.choice([1, 2, 3])
    kind = rng.choice(["least", "most", "not", "not", "equal", "both"])
    if kind == "both":
        return sympy.Min(times * of - number, 2 * number - of)
    return {
        "least": times * of - number, "most": number - times * of, "not": not_equal(times * of, number),
        "equal": equal(times * of, number),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_merged_conditions_select_the_same_sizes(seed: int) -> None:
    rng = random.Random(f"conditions:{seed}")
    margins = [drawn(rng) for _ in range(rng.randint(2, 5))]
    merged = merge_bounds(margins)
    assert held(merged) == held(margins)


@pytest.mark.parametrize("seed", range(20))
def test_no_merged_condition_on_one_size_can_be_left_out(seed: int) -> None:
    rng = random.Random(f"fewest:{seed}")
    margins = [S - rng.randint(2, 9), *(not_equal(S, rng.randint(2, 20)) for _ in range(4)), rng.randint(10, 25) - S]
    merged = merge_bounds(margins)
    whole = held(merged)
    assert all(held([m for m in merged if m is not one]) != whole for one in merged)
