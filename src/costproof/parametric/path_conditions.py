"""Ways that lead to a shape: conditions of which all have to hold, at one point or at a million."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Those conditions of a way that look at the same variables, and where they held when they were last asked.

    Neighbouring boxes of points share the arrays of all axes but one; what stands on these alone is known already.
    """

    variables: tuple[str, ...]
    conditions: list[BranchCondition] = field(default_factory=list)
    asked: tuple[Any, ...] | None = None
    held: Any = True

    def holds(self, values: PointValues) -> Any:
        """Yes or no where it is the same for all, or an array."""
        arrays = tuple(values[name] for name in self.variables)
        if self.asked is None or any(new is not old for new, old in zip(arrays, self.asked, strict=True)):
            known: dict[Any, Any] = {}
            every = reduce(np.logical_and, (condition.holds(values, known) for condition in self.conditions))
            self.asked, self.held = arrays, True if np.all(every) else every if np.any(every) else False
        return self.held


class PathCondition:
    """Conditions that hold together."""

    __slots__ = ("_along", "conditions")

    def __init__(self, conditions: Iterable[BranchCondition]) -> None:
        self.conditions = tuple(conditions)
        groups: dict[tuple[str, ...], _ConditionGroup] = {}
        for condition in self.conditions:
            names = tuple(sorted(variables_of(condition.left) | variables_of(condition.right)))
            groups.setdefault(names, _ConditionGroup(names)).conditions.append(condition)
        # What few variables decide is asked first.
        self._along = sorted(groups.values(), key=lambda group: len(group.variables))

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether one point goes this way."""
        known: dict[Any, Any] = {}
        return all(condition.holds(values, known) for condition in self.conditions)

    def mask(self, values: PointValues) -> Any:
        """Which of some points go this way: yes or no for all of them, or an array that broadcasts to theirs."""
        some = []
        for group in self._along:
            held = group.holds(values)
            if held is False:
                return False
            if held is not True:
                some.append(held)
        return reduce(np.logical_and, some) if some else True


def merge_paths(ways: Sequence[PathCondition]) -> list[PathCondition]:
    """Ways that lead to the same points, as few as that takes.

    Two that part at one comparison alone are one without it; one that asks all that another asks, and more, adds
    nothing to it.
    """
    left = list({frozenset(way.conditions): way for way in ways}.items())
    for one, other in combinations(left, 2):
        differ = one[0] ^ other[0]
        if len(differ) == 2 and len({condition.asked for condition in differ}) == 1:
            common = PathCondition(c for c in one[1].conditions if c not in differ)
            return merge_paths([common, *(way for asked, way in left if not asked >= one[0] & other[0])])
    return [way for asked, way in left if not any(asked > fewer for fewer, _ in left)]


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
