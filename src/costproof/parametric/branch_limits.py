"""How far along one number a target goes the same way: the first value at which a comparison comes out otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from costproof.algebra.crossing import FAR, NotSolved, first_above
from costproof.algebra.symbols import sym
from costproof.parametric.concolic import BranchCondition, SizeExpr
from costproof.parametric.path_conditions import PathCondition

if TYPE_CHECKING:
    import sympy

_MOST_ZEROS = 2
"""Of a polynomial of degree two."""


def branch_limit(way: PathCondition, variable: str, start: int) -> int | None:
    """The first value above one that goes a way at which another way is gone, or may be; ``None``: there is none.

    Where a comparison is of something else than polynomials of degree two at most, no value beside the start is known
    to go the way.

    Args:
        variable: what varies; nothing else does.
        start: a value that goes the way.
    """
    return min((end for condition in way.conditions for end in _ends(condition, variable, start)), default=None)


def _ends(condition: BranchCondition, variable: str, start: int) -> Iterator[int]:
    """Values of which the least is the first at which a condition does not hold, if one does not."""
    name = sym(variable)
    try:
        difference = _polynomial(condition.left, name) - _polynomial(condition.right, name)
        yield from _of_difference(condition, difference, name, start)
    except NotSolved:
        yield start + 1


def _of_difference(condition: BranchCondition, f: sympy.Expr, name: sympy.Symbol, start: int) -> Iterator[int]:
    """The same, by the left side less the right one, which is an integer at every value."""
    # What is above 0 where the condition does not hold.
    broken = {
        ("<", True): [f + 1], ("<", False): [-f], ("<=", True): [f], ("<=", False): [1 - f],
        ("==", True): [f, -f], ("==", False): [],
    }[condition.how, condition.outcome]  # fmt: skip
    found = [first_above(expr, name, start) for expr in broken]
    yield from (end for end in found if end is not None)
    if not broken and f.has(name):
        yield from _zero(f, name, start)


def _zero(f: sympy.Expr, name: sympy.Symbol, start: int) -> Iterator[int]:
    """The first value from one on at which a polynomial is 0; it may pass 0 between two integers."""
    at: int | None = start
    for _ in range(_MOST_ZEROS + 1):
        if at is None or at > FAR:
            return
        here = f.subs(name, at)
        if here == 0:
            yield at
            return
        at = first_above(1 - f if here > 0 else f + 1, name, at)


def _polynomial(expr: SizeExpr, name: sympy.Symbol) -> sympy.Expr:
    import sympy

    how, *parts = expr
    if how == "int":
        return sympy.Integer(parts[0])
    if how == "var":
        return name
    if how not in ("+", "-", "*"):
        raise NotSolved("not a polynomial")
    left, right = (_polynomial(part, name) for part in parts)
    return left + right if how == "+" else left - right if how == "-" else left * right
