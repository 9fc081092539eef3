"""Rows of like modules merged into findings over module patterns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from costproof.compare.align import Row
from costproof.compare.context import Context
from costproof.compare.diagnose import diagnose, finding
from costproof.compare.findings import Finding
from costproof.compare.patterns import patterns, template


def module_findings(rows: Iterable[Row], ctx: Context) -> list[Finding]:
    """One finding per pattern of modules that are alike: same path but for numbers, same values,
    same formulas and same operators in every source."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(_likeness(row, ctx), []).append(row)
    found = []
    for members in groups.values():
        judged = diagnose(members[0], ctx)
        for pattern, inside in patterns(r.module for r in members):
            found.append(finding(members[0], judged, pattern, len(inside)))
    return found


def _likeness(row: Row, ctx: Context) -> Hashable:
    cells = tuple((s, c.value, c.exprs, tuple(k for k, _ in c.kinds)) for s, c in row.cells.items())
    surroundings: Hashable = ()
    if len({c.value for c in row.cells.values()}) > 1:
        # Causes are looked for in the surroundings of a row, so unequal rows merge only if these are alike.
        calls = ctx.calls.get((row.stage, row.invocation, row.module), {})
        unknown = tuple(ctx.unknown.get((s, row.stage, row.module), ()) for s in row.cells)
        surroundings = (tuple(calls.items()), unknown, (row.stage, row.module) in ctx.executed)
    mask, _ = template(row.module)
    return row.stage, row.invocation, mask, row.kind, row.metric, cells, surroundings
