"""Crossings, solved, against looking at every integer."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from costproof.algebra.crossing import FAR, NotSolved, first_above
from costproof.algebra.evaluation import compile_expression

X = sympy.Symbol("x", integer=True, positive=True)


def looked_up(expr: sympy.Expr, start: int, end: int) -> int | None:
    """The first integer at which it is above 0, one after another."""
    value = compile_expression(expr).run
    return next((x for x in range(start, end) if value({"x": x}) > 0), None)


@pytest.mark.parametrize(
    ("expr", "start", "first"),
    [
        (X - 5, 1, 6),  # above, not at
        (2 * X - 5, 1, 3),
        (5 - X, 1, 1),
        (5 - X, 5, None),
        (sympy.Integer(0), 1, None),
        (sympy.Integer(1), 7, 7),
        (X**2 - 49, 1, 8),
        (X**2 - 50, 1, 8),
        (X**2 - 48, 1, 7),
        (-(X**2) + 20 * X - 51, 1, 4),  # (x - 3)(17 - x)
        (-(X**2) + 20 * X - 51, 17, None),
        (-(X**2) + 20 * X - 101, 1, None),  # below 0 everywhere
        (X / 3 - sympy.Rational(7, 2), 1, 11),  # 11/3 > 7/2 > 10/3
        (sympy.Min(64, 6 * X) - 60, 1, 11),  # 66 at 11, so the minimum is 64
        (sympy.Min(64, 6 * X) - 64, 1, None),
        (X - sympy.Min(8, 2 * X), 1, 9),
        (sympy.Max(10, X) - 12, 1, 13),
        (X - FAR, 1, None),
    ],
)
def test_by_hand(expr: sympy.Expr, start: int, first: int | None) -> None:
    assert first_above(expr, X, start) == first


numbers = st.integers(-60, 60)


@settings(max_examples=60)
@given(numbers, numbers, numbers, numbers, numbers, st.integers(1, 9), st.integers(1, 12))
def test_the_same_as_looking(a: int, b: int, c: int, d: int, e: int, over: int, start: int) -> None:
    expr = sympy.Rational(a, over) * X**2 + b * X + 20 * c + sympy.Min(d, e * X) - sympy.Max(e, d * X - 7)
    found = first_above(expr, X, start)
    assert found == looked_up(expr, start, 400) or (found is not None and found >= 400)


def test_what_is_not_solved() -> None:
    with pytest.raises(NotSolved, match="degree 3"):
        first_above(X**3 - 5, X)
    with pytest.raises(NotSolved, match="not a polynomial"):
        first_above(sympy.floor(X / 2) - 5, X)
