"""Ways that lead to a shape: conditions of which all have to hold, at one point or at a million."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from costproof.parametric.concolic import BranchCondition, PointValues, variables_of


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
