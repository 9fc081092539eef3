"""The second judge beside the dynamic source: the same runs, counted by torch's own formulas at the dispatcher."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from costproof.compare.align import Row, Spot, align
from costproof.compare.diagnose import Diagnosis, finding
from costproof.compare.findings import Cause, Finding, Judges
from costproof.compare.patterns import patterns, template
from costproof.ledger.capture import Capture
from costproof.ledger.node import Ledger, unknown_clause

WITHOUT = "FLOPs of operators: the dynamic source has no second judge in this capture"


def second_judge(capture: Capture) -> tuple[Judges, tuple[Finding, ...]]:
    """What the second judge confirms, what it cannot, and a finding for each operator on which the two differ."""
    dynamic = next((x for x in capture.ledgers if x.source == "dynamic"), None)
    if dynamic is None or capture.judge is None:
        return Judges(0, 0, (WITHOUT,)), ()
    judge = capture.judge
    blind = {(o.stage, o.module) for o in judge.unknown_ops}
    rows = [r for r in align([_flops(dynamic), judge]) if r.cells["dynamic"].value is not None]
    agreed = [r for r in rows if _said(r)[0] == _said(r)[1]]
    unlike: dict[Spot, list[Row]] = {}
    for row in rows:
        if _said(row)[0] != _said(row)[1] and (row.stage, row.module) not in blind:
            unlike.setdefault((row.stage, row.invocation, row.module), []).append(row)
    differing: dict[Hashable, list[Row]] = {}
    for members in unlike.values():
        if _decomposed(members):
            agreed += members
            continue
        for row in members:
            cells = tuple((s, c.value, c.kinds) for s, c in row.cells.items())
            differing.setdefault((row.stage, row.invocation, template(row.module)[0], row.kind, cells), []).append(row)
    names = dict.fromkeys(o.op for o in judge.unknown_ops)
    alone = (f"operator {n}: {unknown_clause([o for o in judge.unknown_ops if o.op == n])}" for n in names)
    found = (
        _finding(members[0], pattern, len(inside))
        for members in differing.values()
        for pattern, inside in patterns(r.module for r in members)
    )
    return Judges(len(agreed), sum(r.cells["dynamic"].value or 0 for r in agreed), tuple(alone)), tuple(found)


def _flops(ledger: Ledger) -> Ledger:
    """The FLOPs of a ledger, alone."""
    nodes = tuple(n for n in ledger.nodes if "flops" in n.costs)
    return Ledger(ledger.source, nodes, ("flops",), ledger.stages)


def _said(row: Row) -> tuple[int | None, int | None]:
    return row.cells["dynamic"].value, row.cells["dispatcher"].value


def _decomposed(rows: Sequence[Row]) -> bool:
    """Whether one side names an operator of a module that the other lacks, and both add up to the same: a composite,
    which the dispatcher sees as the products that it is made of."""
    said = [_said(row) for row in rows]
    return any(0 in pair for pair in said) and sum(a or 0 for a, _ in said) == sum(b or 0 for _, b in said)


def _finding(row: Row, pattern: str, count: int) -> Finding:
    mine, other = row.cells["dynamic"], row.cells["dispatcher"]
    delta = None if mine.value is None or other.value is None else mine.value - other.value
    said = ", ".join(f"{kind} {value:,}" for kind, value in other.kinds if value is not None) or "nothing"
    cause = Cause(
        "judge_difference", delta or 0, (*mine.ids[:3], *other.ids[:3]), accepted=False,
        note=f"torch's own formulas count {said} in the same calls",
    )  # fmt: skip
    made = finding(row, Diagnosis("unexplained", delta, "dispatcher", (cause,), delta), pattern, count)
    return replace(made, id=f"judge/{made.id}", level="judge")
