"""Formulas are told apart where numbers are not."""

from __future__ import annotations

import pytest

from costproof.algebra.identity import at, difference, free_symbols, same
from costproof.compare.diagnose import hint


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("2*B*S**2 + 3", {"B": 5, "S": 7}, 2 * 5 * 49 + 3),
        ("ceiling(H/14)*14", {"H": 40}, 42),
        ("floor(H/14)", {"H": 40}, 2),
        ("Min(64, 6*B)*Max(B, 2)", {"B": 3}, 18 * 3),
        ("N*(N - 1)/2", {"N": 5}, 10),
        ("7", {}, 7),
    ],
)
def test_values_by_hand(expression: str, values: dict[str, int], expected: int) -> None:
    assert at((expression,), values) == expected
    assert free_symbols(expression) == frozenset(values)


def test_sum_and_missing_symbol() -> None:
    assert at(("B", "2*B"), {"B": 3}) == 9
    assert at(("B",), {}) is None


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("B*(S + 1)", "B*S + B", True),
        ("B*S", "S*B", True),
        ("B*S", "B**2", False),
        ("Min(64, B)", "B", False),  # equal up to 64 only
        ("Min(64, B)", "64", False),  # equal from 64 only
        ("Min(8, 2*B)", "2*Min(4, B)", True),
        ("Min(8, 2*B)", "Min(8, B + 2)", False),  # 2 and 3 at B = 1 only
        ("S", "S + Max(0, 1 - (S - 777)**2)", False),
        ("ceiling(S/16)", "floor((S + 15)/16)", True),
        ("Min(8, B*S)", "Min(8, S*B)", True),
        ("B*h", "8*B", True),
        ("B*h", "9*B", False),
    ],
)
def test_same(first: str, second: str, equal: bool) -> None:
    assert same((first,), (second,), (("h", 8),), (), frozenset({"B", "S"})) is equal


def test_alias() -> None:
    assert same(("B*L",), ("B*S",), (), (("L", "S"),), frozenset({"B", "S"}))
    assert not same(("B*L",), ("B*S",), (("L", 3),), (), frozenset({"B", "S"}))


def test_difference_is_factored() -> None:
    # 2*B*S*8*9 - 2*B*S*8*8 = 16*B*S
    assert difference(("2*B*S*h*(h + 1)",), ("128*B*S",), (("h", 8),), ()) == "16*B*S"


@pytest.mark.parametrize(
    ("value", "expected", "exprs", "says"),
    [
        (0, 5, (), "missing"),
        (5, 0, ("5",), "extra"),
        (4, 8, ("a",), "factor 1/2 (a multiply-accumulate"),
        (34, 30, ("a*5 + 4",), "extra term 4"),
        # a = 6, c_x = 10, c_y = 30 (same family): 6*30 where 6*10 was right
        (70, 130, ("a*c_x + 10",), "missing term of the size 2*c_y"),
    ],
)
def test_hints(value: int, expected: int, exprs: tuple[str, ...], says: str) -> None:
    assert says in hint(value, expected, exprs, {"a": 6, "c_x": 10, "c_y": 30})


def test_hint_names_the_swapped_dimension() -> None:
    values = {"a": 6, "c_x": 10, "c_y": 70}
    assert "c_y in place of c_x" in hint(6 * 70, 6 * 10, ("a*c_y",), values)
