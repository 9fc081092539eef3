"""What allowances cover of what is above a limit: nothing twice, and never more than happened where they count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costproof.compare.gate.policy import Allowance, PolicyPlace
from costproof.ledger.metrics import STAGE_WIDE


@dataclass(slots=True)
class Credits:
    """The allowances of a policy, as one source says what happened.

    An allowance is spent once over places that have nothing in common: all stages, and what one limit with a pattern
    stands for. Places that hold each other, and limits of their own about roles, look at the same increase: each has
    all of it.
    """

    allowed: Sequence[Allowance]
    """Those that count today."""
    base: Callable[[PolicyPlace], int | None]
    head: Callable[[PolicyPlace], int | None]
    spent: dict[Any, dict[PolicyPlace, dict[int, int]]] = field(default_factory=dict)
    """Places that share -> place -> number of an allowance -> units."""

    def cover(self, place: PolicyPlace, over: int) -> tuple[Allowance, ...] | None:
        """Spend allowances on what is above a limit of a place.

        Returns:
            those that were spent; ``None`` where they do not suffice, and then nothing is spent.
        """
        shared = self.spent.setdefault(_group(place), {})
        here = _itself(place)
        mine = dict(shared.get(here, {}))
        for number, allowance in self._narrowest_first():
            rest = over - sum(mine.values())
            if rest <= 0:
                break
            left = self.amount(allowance) - self.elsewhere(place, allowance)
            known = mine.get(number, 0)
            mine[number] = max(known, min(known + rest, left, self._happened(number, here, mine)))
        if sum(mine.values()) < over:
            return None
        shared[here] = mine
        return tuple(self.allowed[number] for number, units in sorted(mine.items()) if units > 0)

    def about(self, place: PolicyPlace) -> tuple[Allowance, ...]:
        """Those that count for a place, whether they suffice or not."""
        return tuple(a for i, a in enumerate(self.allowed) if self.amount(a) and self._happened(i, place, {}) > 0)

    def elsewhere(self, place: PolicyPlace, allowance: Allowance) -> int:
        """Units of an allowance that places beside this one have."""
        number, shared = self.allowed.index(allowance), self.spent.get(_group(place), {})
        return sum(units.get(number, 0) for where, units in shared.items() if where != _itself(place))

    def amount(self, allowance: Allowance) -> int:
        """Return the units of an allowance; 0 if its place has no number."""
        whole = self.base(allowance.place)
        return 0 if whole is None else allowance.increase.of(whole)

    def _narrowest_first(self) -> list[tuple[int, Allowance]]:
        # What one place alone can use is spent before what others can use too.
        return sorted(enumerate(self.allowed), key=lambda p: (-bool(p[1].place.stage), -len(p[1].place.role), p[0]))

    def _happened(self, number: int, place: PolicyPlace, mine: dict[int, int]) -> int:
        """Return the growth where an allowance and a place overlap, less the part that other allowances cover."""
        where = meeting(self.allowed[number].place, place)
        if where is None:
            return 0
        base, head = self.base(where), self.head(where)
        if base is None or head is None:
            return 0
        others = sum(
            units for other, units in mine.items() if other != number and meeting(self.allowed[other].place, where)
        )
        return max(0, head - base - others)


def meeting(one: PolicyPlace, other: PolicyPlace) -> PolicyPlace | None:
    """Return the overlap of two places, such as a role within a stage; None if they have nothing in common."""
    stages, roles = {one.stage, other.stage} - {""}, {one.role, other.role} - {""}
    inner = max(roles, key=len, default="")
    if (
        one.metric != other.metric
        or len(stages) > 1
        or any(inner != role and not inner.startswith(f"{role}.") for role in roles)
        or any(p.alone and inner != p.role for p in (one, other))
    ):
        return None
    return replace(other, stage="".join(stages), role=inner, alone=one.alone or other.alone)


def _itself(place: PolicyPlace) -> PolicyPlace:
    """Return the place without the line of the policy that names it."""
    return replace(place, line=0)


def _group(place: PolicyPlace) -> tuple[object, ...]:
    """Places of one group have nothing in common."""
    if not place.stage and not place.role:
        return (place.metric,)
    # A module that works in two stages has its parameters in both.
    stage = place.stage if place.metric in STAGE_WIDE else ""
    return (place.metric, stage, place.line if place.role else -1)
