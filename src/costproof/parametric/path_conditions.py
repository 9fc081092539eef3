"""Represent path conditions: evaluate them at arrays of points, merge them, and find where they stop holding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from costproof.algebra.crossing import FAR, NotSolved, first_above
from costproof.algebra.symbols import sym
from costproof.parametric.concolic import BranchCondition, PointValues, SizeExpr, variables_of

if TYPE_CHECKING:
    import sympy


@dataclass(slots=True)
class _ConditionGroup:
    """Conditions of a path on the same variables, with their last result.

    Consecutive boxes of points share the arrays of all axes but one, so that most groups need not be evaluated again.
    """

    variables: tuple[str, ...]
    conditions: list[BranchCondition] = field(default_factory=list)
    arguments: tuple[Any, ...] | None = None
    """The arrays for which :attr:`held` was computed; ``None`` before the first result."""
    held: Any = True

    def holds(self, values: PointValues) -> Any:
        """Return where all conditions hold, as one bool if all points agree, else as an array."""
        arrays = tuple(values[name] for name in self.variables)
        if self.arguments is None or any(new is not old for new, old in zip(arrays, self.arguments, strict=True)):
            known: dict[Any, Any] = {}
            every = reduce(np.logical_and, (condition.holds(values, known) for condition in self.conditions))
            self.arguments, self.held = arrays, True if np.all(every) else every if np.any(every) else False
        return self.held


class PathCondition:
    """A conjunction of branch conditions."""

    __slots__ = ("_groups", "conditions")

    def __init__(self, conditions: Iterable[BranchCondition]) -> None:
        self.conditions = tuple(conditions)
        groups: dict[tuple[str, ...], _ConditionGroup] = {}
        for condition in self.conditions:
            names = tuple(sorted(variables_of(condition.left) | variables_of(condition.right)))
            groups.setdefault(names, _ConditionGroup(names)).conditions.append(condition)
        # Conditions on few variables come first.
        self._groups = sorted(groups.values(), key=lambda group: len(group.variables))

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether one point satisfies all conditions."""
        known: dict[Any, Any] = {}
        return all(condition.holds(values, known) for condition in self.conditions)

    def mask(self, values: PointValues) -> Any:
        """Return which points satisfy all conditions, as one bool if all agree, else as an array that broadcasts."""
        some = []
        for group in self._groups:
            held = group.holds(values)
            if held is False:
                return False
            if held is not True:
                some.append(held)
        return reduce(np.logical_and, some) if some else True


def merge_paths(paths: Sequence[PathCondition]) -> list[PathCondition]:
    """Return as few path conditions as possible that together hold at the same points.

    Two paths that differ only in the outcome of one comparison are merged into one without it. A path whose conditions
    are a superset of another path's is dropped.
    """
    left = list({frozenset(path.conditions): path for path in paths}.items())
    for one, other in combinations(left, 2):
        differ = one[0] ^ other[0]
        if len(differ) == 2 and len({condition.comparison for condition in differ}) == 1:
            common = PathCondition(c for c in one[1].conditions if c not in differ)
            return merge_paths([common, *(path for conditions, path in left if not conditions >= one[0] & other[0])])
    return [path for conditions, path in left if not any(conditions > fewer for fewer, _ in left)]


_MOST_ZEROS = 2
"""Number of zeros of a quadratic polynomial."""


def branch_limit(path: PathCondition, variable: str, start: int, step: int = 1) -> int | None:
    """Return the smallest value above ``start`` at which a path condition fails or may fail, or ``None``.

    If a condition compares anything but polynomials of degree two at most, ``start + 1`` is returned.

    Args:
        path: a path that ``start`` satisfies.
        variable: the only variable that changes.
        start: the value to start from, in units of ``step``, as the result is.
        step: the variable takes only multiples of it.
    """
    limits = (_limits(condition, variable, start, step) for condition in path.conditions)
    return min((end for ends in limits for end in ends), default=None)


def _limits(condition: BranchCondition, variable: str, start: int, step: int) -> Iterator[int]:
    """Yield candidates for the first value at which a condition fails; the smallest candidate is that value."""
    name = sym(variable)
    try:
        left, right = (to_sympy(part, lambda _: step * name) for part in (condition.left, condition.right))
        yield from _difference_limits(condition, left - right, name, start)
    except NotSolved:
        yield start + 1


def _difference_limits(condition: BranchCondition, f: sympy.Expr, name: sympy.Symbol, start: int) -> Iterator[int]:
    """Yield candidates for the first value at which a condition fails; ``f`` is its left minus its right side."""
    # The expression that is above 0 where the condition does not hold.
    broken = {
        ("<", True): [f + 1], ("<", False): [-f], ("<=", True): [f], ("<=", False): [1 - f],
        ("==", True): [f, -f], ("==", False): [],
    }[condition.how, condition.outcome]  # fmt: skip
    found = [first_above(expr, name, start) for expr in broken]
    yield from (end for end in found if end is not None)
    if not broken and f.has(name):
        yield from _first_zero(f, name, start)


def _first_zero(f: sympy.Expr, name: sympy.Symbol, start: int) -> Iterator[int]:
    """Yield the first value from ``start`` on at which a polynomial is 0, if there is one.

    It may change its sign between two integers.
    """
    at: int | None = start
    for _ in range(_MOST_ZEROS + 1):
        if at is None or at > FAR:
            return
        here = f.subs(name, at)
        if here == 0:
            yield at
            return
        at = first_above(1 - f if here > 0 else f + 1, name, at)


def to_sympy(expr: SizeExpr, symbol: Callable[[str], sympy.Symbol], *, floors: bool = False) -> sympy.Expr:
    """Convert the expression of a size to sympy.

    A quotient by a number that divides all terms but the constant one is a polynomial, and its remainder a number.

    Args:
        symbol: returns the symbol of a variable, or what it stands for.
        floors: whether other floor divisions and remainders are converted too, as ``floor`` of a quotient.

    Raises:
        NotSolved: the expression is not a polynomial, and ``floors`` is not set.
    """
    import sympy

    how, *parts = expr
    if how == "int":
        return sympy.Integer(parts[0])
    if how == "var":
        return symbol(parts[0])
    left, right = (to_sympy(part, symbol, floors=floors) for part in parts)
    if how in ("//", "%") and right.is_Integer and right > 0:
        constant, terms = sympy.expand(left).as_coeff_Add()
        if all((coefficient / right).is_Integer for coefficient in terms.as_coefficients_dict().values()):
            return sympy.expand(terms / right) + constant // right if how == "//" else constant % right
    if how in ("//", "%") and not floors:
        raise NotSolved("not a polynomial")
    if how in ("//", "%"):
        whole = sympy.floor(left / right)
        return whole if how == "//" else left - right * whole
    return left + right if how == "+" else left - right if how == "-" else left * right
