"""Spend allowances on amounts above limits: no unit twice, and at most the growth where an allowance applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from costproof.compare.gate.policy import Allowance, PolicyPlace
from costproof.ledger.metrics import STAGE_WIDE


@dataclass(slots=True)
class Credits:
    """The allowances of a policy, and how much of each is spent, by the numbers of one source.

    Disjoint places share one allowance: the stages, and the places that a limit with a pattern expands to. Nested
    places, and separate limits on roles, concern the same increase, so each of them can use the whole allowance.
    """

    allowed: Sequence[Allowance]
    """Allowances that have not expired."""
    base: Callable[[PolicyPlace], int | None]
    head: Callable[[PolicyPlace], int | None]
    spent: dict[Any, dict[PolicyPlace, dict[int, int]]] = field(default_factory=dict)
    """Group of places that share allowances -> place -> index of the allowance -> units spent."""

    def cover(self, place: PolicyPlace, over: int) -> tuple[Allowance, ...] | None:
        """Spend allowances on the units by which a place exceeds a limit.

        Returns:
            the allowances used; ``None`` if they do not suffice, in which case nothing is spent.
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
        """Return the allowances that apply to a place, whether they suffice or not."""
        return tuple(a for i, a in enumerate(self.allowed) if self.amount(a) and self._happened(i, place, {}) > 0)

    def elsewhere(self, place: PolicyPlace, allowance: Allowance) -> int:
        """Return the units of an allowance that other places have used."""
        number, shared = self.allowed.index(allowance), self.spent.get(_group(place), {})
        return sum(units.get(number, 0) for where, units in shared.items() if where != _itself(place))

    def amount(self, allowance: Allowance) -> int:
        """Return the units of an allowance; 0 if its place has no number."""
        whole = self.base(allowance.place)
        return 0 if whole is None else allowance.increase.of(whole)

    def _narrowest_first(self) -> list[tuple[int, Allowance]]:
        # Allowances that only one place can use are spent before those that others can use too.
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
    """Return the overlap of two places, such as a role within a stage; ``None`` if they are disjoint."""
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
    """Return the key of the group of disjoint places that share allowances with a place."""
    if not place.stage and not place.role:
        return (place.metric,)
    # A module that works in two stages has its parameters in both.
    stage = place.stage if place.metric in STAGE_WIDE else ""
    return (place.metric, stage, place.line if place.role else -1)
