"""The rows of two sides, matched by what they are about: stage, role, kind of operator, metric. Never by a label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from costproof.compare.diff.types import RowDiff
from costproof.ledger.baseline import BaselineRow, Folded
from costproof.ledger.metrics import Metric

_Rows = Mapping[BaselineRow, int | None]
_Place = tuple[str, str]
"""Stage and part."""


def matched(base: Folded, head: Folded, metrics: Iterable[Metric]) -> tuple[tuple[RowDiff, ...], int]:
    """The rows that are not the same, in the order of the stages, and how many are.

    A row that one side does not have is 0 there, so that the rows of a stage add up to its difference. A part that is
    gone and one that is new have moved if all their rows are the same, and no third has the same rows.
    """
    wanted = frozenset(metrics)
    sides = [{row: value for row, value in side.items() if row.metric in wanted} for side in (base, head)]
    stages = list(dict.fromkeys((*head.stages, *base.stages)))
    order = {row: i for i, row in enumerate(dict.fromkeys((*sides[1], *sides[0])))}
    moved = _moved(*sides)
    found, same = [], 0
    for row in sorted(order, key=lambda row: (stages.index(row.stage), row.part, row.kind, order[row])):
        before, after = (side.get(row, 0) for side in sides)
        if before == after and before is not None:
            same += 1
            continue
        delta = None if before is None or after is None else after - before
        other = moved.get((row.stage, row.part), "")
        fate = "changed" if all(row in side for side in sides) else "added" if row in sides[1] else "removed"
        found.append(RowDiff(*row, before, after, delta, "moved" if other else fate, other))  # type: ignore[arg-type]
    return tuple(found), same


def _moved(base: _Rows, head: _Rows) -> dict[_Place, str]:
    """Place that one side alone has -> where the other side has the same rows, as text."""
    gone, new = _alone(base, head), _alone(head, base)
    found: dict[_Place, str] = {}
    for rows, places in new.items():
        if len(places) == 1 == len(gone.get(rows, ())):
            (here,), (there,) = places, gone[rows]
            found |= {here: "/".join(there), there: "/".join(here)}
    return found


def _alone(side: _Rows, other: _Rows) -> dict[frozenset[object], list[_Place]]:
    """The places that one side alone has, by all their rows."""
    known = {(row.stage, row.part) for row in other}
    rows: dict[_Place, set[object]] = {}
    for row, value in side.items():
        if (row.stage, row.part) not in known:
            rows.setdefault((row.stage, row.part), set()).add((row.kind, row.metric, value))
    found: dict[frozenset[object], list[_Place]] = {}
    for place, its in rows.items():
        found.setdefault(frozenset(its), []).append(place)
    return found
