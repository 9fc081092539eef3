"""Allowances by brute force: what they cover can be paid with what happened, each unit and each allowance once."""

from __future__ import annotations

from collections import Counter
from datetime import date
from fractions import Fraction
from random import Random
from typing import Any

from costproof.compare.gate.judge import Credits
from costproof.compare.gate.policy import Allowance, PolicyAmount, PolicyPlace

CASES = 600
STAGES, ROLES = ("a", "b", "c"), ("x", "y")
Cells = dict[tuple[str, str], int]


def within(place: PolicyPlace, stage: str, role: str) -> bool:
    return place.stage in ("", stage) and place.role in ("", role)


def payable(cells: Cells, allowed: list[Allowance], need: dict[str, int]) -> int:
    """The most that allowances can pay of the needs of stages: a flow, one unit after another."""
    room: Counter[tuple[Any, Any]] = Counter()
    for i, allowance in enumerate(allowed):
        room["source", i] += int(allowance.increase.value)
        for cell in cells:
            room[i, cell] += 99 * within(allowance.place, *cell)
    for cell, grown in cells.items():
        room[cell, ("out", cell)] += grown
        room[("out", cell), cell[0]] += 99
    for stage, units in need.items():
        room[stage, "sink"] += units
    ends = {u for edge in room for u in edge}
    paid = 0
    while True:
        before: dict[Any, Any] = {"source": None}
        queue: list[Any] = ["source"]
        while queue:
            u = queue.pop()
            reached = [v for v in ends if v not in before and room[u, v] > 0]
            before |= dict.fromkeys(reached, u)
            queue += reached
        if "sink" not in before:
            return paid
        v: Any = "sink"
        while before[v] is not None:
            room[before[v], v] -= 1
            room[v, before[v]] += 1
            v = before[v]
        paid += 1


def test_what_is_covered_can_be_paid() -> None:
    rng = Random(3)
    covered = 0
    for _ in range(CASES):
        cells: Cells = {(s, r): rng.randrange(6) for s in STAGES for r in ROLES}
        allowed = [
            Allowance(
                PolicyPlace("flops", rng.choice(("", *STAGES)), rng.choice(("", "", *ROLES)), line=i),
                PolicyAmount("", Fraction(rng.randrange(12))),
                "agreed",
                date(2030, 1, 1),
            )
            for i in range(rng.randrange(4))
        ]

        def head(place: PolicyPlace, cells: Cells = cells) -> int:
            return sum(grown for cell, grown in cells.items() if within(place, *cell))

        credit = Credits(allowed, lambda place: 0, head)
        wanted = {s: rng.randrange(1, 2 + head(PolicyPlace("flops", s))) for s in STAGES}
        need = {
            s: units for s, units in wanted.items() if credit.cover(PolicyPlace("flops", s, line=9), units) is not None
        }
        assert payable(cells, allowed, need) == sum(need.values()), (cells, allowed, need)
        covered += len(need)
    assert covered > CASES / 3, "most cases would show nothing"
