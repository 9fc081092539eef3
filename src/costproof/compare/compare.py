"""Compare the sources of a capture, and its dynamic source with torch's FLOP formulas; return the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from costproof.compare.align import AlignedCell, AlignedRow, Spot, align, bound_metrics
from costproof.compare.causes import Context, context
from costproof.compare.counters import compare_counters
from costproof.compare.diagnose import Diagnosis, finding, module_findings
from costproof.compare.findings import CAUSES, Cause, CauseKind, Discrepancy, Finding, Judges, Level
from costproof.compare.kinds import kind_of
from costproof.compare.patterns import patterns, template
from costproof.compare.totals import expert_findings, sums, uneven_experts
from costproof.compare.verdict import coverage, gaps, given_by, verdict_of
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import KEPT, KEPT_SCORES
from costproof.ledger.node import NO_FORMULA, Ledger, UnknownOp, unknown_clause


def compare(capture: Capture) -> Discrepancy:
    """Compare all sources of a capture, quantity by quantity.

    A pure function that does not need torch. :class:`Finding` documents which source a delta is measured against.
    """
    rows = align(capture.ledgers)
    ctx = context(capture, rows)
    modules = [*module_findings(rows, ctx), *bound_findings(capture, ctx)]
    judges, disputed = second_judge(capture)
    of_experts = (*expert_findings(capture), *uneven_experts(capture))
    of_sources = (
        *trace_findings(capture), *size_findings(capture), *silent_findings(capture), *unchecked_findings(capture),
        *resident_findings(capture),
        *peak_findings(capture),
    )  # fmt: skip
    findings = (*sums(capture, modules), *modules, *of_experts, *of_sources, *disputed)
    incomplete = gaps(capture, findings)
    return Discrepancy(
        conventions=capture.conventions,
        target=capture.target,
        workload=capture.workload,
        environment=capture.environment,
        verdict=verdict_of(findings, incomplete),
        findings=findings,
        coverage=coverage(capture),
        incomplete=incomplete,
        judges=judges,
        counters=compare_counters(capture.counters) if capture.counters is not None else None,
        given_by=given_by(findings),
    )


def bound_findings(capture: Capture, ctx: Context) -> list[Finding]:
    """Return a finding for each module whose sources differ in a metric that time bounds use.

    Metrics of bounds are in no table, so those that agree are not findings.
    """
    rows = align(capture.ledgers, bound_metrics(capture.workload.dtype, capture.ledgers))
    return [found for found in module_findings(rows, ctx) if found.status == "unexplained"]


def trace_findings(capture: Capture) -> list[Finding]:
    """Return one finding for each call or edge on which the two dynamic tracers differ."""
    if capture.trace_check is None:
        return []
    return [
        _finding(
            f"trace/{number:03d}#calls", _defect("trace_difference", difference, note=difference), difference,
            stage="trace", level="trace",
        )
        for number, difference in enumerate(capture.trace_check.differences, start=1)
    ]  # fmt: skip


def silent_findings(capture: Capture) -> list[Finding]:
    """Return a finding for each metric that a source must have according to the target's record but lacks."""
    return [
        _finding(
            f"{ledger.source}#{metric}", _defect("silent_source", ledger.source),
            f"{ledger.source} no longer gives {metric}", stage=ledger.source, metric=metric,
        )
        for ledger in capture.ledgers
        for metric in capture.recorded.get(ledger.source, ())
        if metric not in ledger.metrics
    ]  # fmt: skip


_IN_TORCH: Final = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")
"""Operators for which every supported torch version has a FLOP formula."""


def unchecked_findings(capture: Capture) -> list[Finding]:
    """Return a finding for each check that a traced run lacks: torch's FLOP formulas, or a second tracer."""
    dynamic = next((x for x in capture.ledgers if x.source == "dynamic"), None)
    if capture.run is None or dynamic is None:
        return []
    judge, said = capture.judge, list[str]()
    if capture.trace_check is None:
        said.append("calls of the traced run are not compared with those of hooks")
    if judge is None or "flops" not in judge.metrics:
        said.append("the FLOPs of the traced run are not compared with torch's formulas")
    else:
        said += (f"torch's formulas do not count {stage}" for stage in dynamic.stages if stage not in judge.stages)
        without = {o.op for o in judge.unknown_ops if o.why == NO_FORMULA}
        said += (f"torch has a formula for {name}, which the second judge does not use" for name in _IN_TORCH
                 if name in without)  # fmt: skip
    return [
        _finding(f"dispatcher/{i:03d}#flops", _defect("silent_source", text), text, stage="dispatcher", metric="flops")
        for i, text in enumerate(said, start=1)
    ]


def resident_findings(capture: Capture) -> list[Finding]:
    """Return a finding if the static source's resident bytes are not the sum of its parameters and buffers.

    Separate code counts both. Not compared for a quantised model, which holds other bytes than those of its parameters.
    """
    static = capture.by_source.get("static")
    parts = ("weight_bytes", "buffer_bytes", "resident_bytes")
    if static is None or capture.target.quantised or not {*parts} <= {*static.metrics}:
        return []
    weights, buffers, resident = (static.total(metric) for metric in parts)
    if weights is None or buffers is None or resident in (None, weights + buffers):
        return []
    text = f"static has {resident:,} resident bytes, but {weights:,} of parameters and {buffers:,} of buffers"
    cause = _defect("source_disagreement", text)
    return [_finding("static#resident_bytes", cause, text, stage="static", metric="resident_bytes")]


def size_findings(capture: Capture) -> list[Finding]:
    """Return a finding for each size of a call that contradicts the input shapes of its graph.

    The costs of all sources in symbols are evaluated at the sizes of the calls, so no cost shows that these are wrong.
    """
    return [
        _finding(
            f"{call.stage}[{call.id}]#{symbol}", _defect("input_sizes", symbol),
            f"{symbol} of {call.stage}[{call.id}] is {call.symbols[symbol]:,} where costs are evaluated, "
            f"{size:,} in the inputs of the {ledger.source} source",
            stage=call.stage, invocation=call.id,
        )
        for ledger in capture.ledgers
        for call in capture.invocations
        for symbol, size in ledger.sizes.get(f"{call.stage}[{call.id}]", {}).items()
        if call.symbols.get(symbol, size) != size
    ]  # fmt: skip


def peak_findings(capture: Capture) -> list[Finding]:
    """Return a finding for each call with a live peak both by formula and by graph."""
    found = []
    for call in capture.peaks:
        if call.formula is None or call.graph is None:
            continue
        delta = call.formula - call.graph.bytes
        found.append(
            Finding(
                id=f"{call.stage}[{call.invocation}]#graph_peak_bytes",
                level="source",
                stage=call.stage,
                invocation=call.invocation,
                module="",
                kind="",
                metric="graph_peak_bytes",
                status="unexplained" if delta else "exact",
                values={"analytic": call.formula, "static": call.graph.bytes},
                delta=delta,
                causes=(),
                residual=delta,
                reference="static",
                deltas={"analytic-static": delta} if delta else {},
                evidence=(
                    f"the live peak of {call.stage} by formula differs from that of its graph by {delta:+,} bytes",
                )
                if delta
                else (),
            )
        )
    return found


def _defect(kind: CauseKind, evidence: str, note: str = "") -> Cause:
    """Return a cause that names a defect and explains no amount of a difference.

    Args:
        note: the meaning of the kind, unless given.
    """
    return Cause(kind, 0, (evidence,), accepted=False, note=note or CAUSES[kind])


def _finding(
    id_: str,
    cause: Cause,
    evidence: str,
    *,
    stage: str,
    invocation: str = "",
    metric: str = "calls",
    level: Level = "source",
) -> Finding:
    """Return a finding that does not compare two values, such as one on a defect."""
    return Finding(
        id=id_,
        level=level,
        stage=stage,
        invocation=invocation,
        module="",
        kind="",
        metric=metric,
        status="unexplained",
        values={},
        delta=None,
        causes=(cause,),
        residual=None,
        evidence=(evidence,),
    )  # fmt: skip


WITHOUT = "FLOPs of operators: the dynamic source has no second judge in this capture"


def second_judge(capture: Capture) -> tuple[Judges, tuple[Finding, ...]]:
    """Compare the dynamic source with torch's FlopCounterMode; return a summary, and findings for differences."""
    dynamic = next((x for x in capture.ledgers if x.source == "dynamic"), None)
    if dynamic is None or capture.judge is None or "flops" not in capture.judge.metrics:
        return Judges(0, 0, (WITHOUT,)), ()
    judge = capture.judge
    unjudged: dict[tuple[str, str], list[str]] = {}
    for o in judge.unknown_ops:
        unjudged.setdefault((o.stage, o.module), []).append(o.op)
    both = {"dynamic", judge.source}
    rows = [
        r
        for r in align([dynamic, judge], ("flops",))
        if both <= r.cells.keys() and r.cells["dynamic"].value is not None
    ]
    # An operator without a rule is unknown, not 0: a surplus in torch's count may belong to it.
    lacking = {(o.stage, o.module) for o in dynamic.unknown_ops}
    ruleless = [r for r in rows if (r.stage, r.module) in lacking and _beyond(r)]
    rows = [r for r in rows if r not in ruleless]
    agreed = [r for r in rows if _said(r)[0] == _said(r)[1]]
    unlike: dict[Spot, list[AlignedRow]] = {}
    for row in rows:
        if _said(row)[0] != _said(row)[1]:
            unlike.setdefault((row.stage, row.invocation, row.module), []).append(row)
    differing: list[AlignedRow] = []
    left: list[AlignedRow] = []
    for (stage, _, module), members in unlike.items():
        excused, bad = _apart(members, unjudged.get((stage, module), ()))
        left += excused
        differing += bad
        agreed += [row for row in members if row not in excused and row not in bad]
    names = dict.fromkeys(o.op for o in judge.unknown_ops)
    alone = [_alone(name, [o for o in judge.unknown_ops if o.op == name]) for name in names]
    alone += [_left_open(*each) for each in _merged(left)]
    alone += [_without_rule(*each) for each in _merged(ruleless)]
    # Where the run's own trace does not tell what masks leave, the graph may.
    of = dynamic if KEPT_SCORES in dynamic.metrics else capture.by_source.get("static", dynamic)
    open_, unseen = _kept_pairs(of, judge, {(r.stage, r.module) for r in (*differing, *left, *ruleless)})
    alone += [
        f"kept scores in {pattern or '(root)'}, {row.stage}: the run does not show what its masks contain, or it is "
        "too much"
        for row, pattern, _ in _merged(unseen)
    ]
    found = (_judge_finding(*each) for each in _merged((*differing, *open_)))
    flops = sum(r.cells["dynamic"].value or 0 for r in agreed)
    return Judges(len(agreed), flops, tuple(alone), tuple(sorted({n.kind for n in judge.nodes}))), tuple(found)


def _kept_pairs(
    ledger: Ledger, judge: Ledger, apart: Collection[tuple[str, str]]
) -> tuple[list[AlignedRow], list[AlignedRow]]:
    """Return two lists of rows of kept scores and FLOPs: those that the run refutes, and those that it does not show.

    Args:
        apart: (stage, module) whose FLOPs differ already, or where either side lacks an operator.
    """
    lacking = {(o.stage, o.module) for side in (ledger, judge) for o in side.unknown_ops} | {*apart}
    rows = [
        row
        for row in align([ledger, judge], KEPT)
        if {ledger.source, judge.source} == row.cells.keys() and _said(row)[0] is not None
    ]
    unseen = [r for r in rows if _said(r)[1] is None or (r.metric == KEPT_SCORES and (r.stage, r.module) in lacking)]
    blind = {(r.stage, r.invocation, r.module) for r in unseen}
    # A composite operator of one side may be several products of the other: only sums of a module can differ.
    surplus: Counter[tuple[Spot, str]] = Counter()
    for row in rows:
        mine, other = _said(row)
        surplus[(row.stage, row.invocation, row.module), row.metric] += (mine or 0) - (other or 0)
    differing = [
        row
        for row in rows
        if _said(row)[0] != _said(row)[1] and surplus[(row.stage, row.invocation, row.module), row.metric]
        if (row.stage, row.invocation, row.module) not in blind and (row.stage, row.module) not in lacking
    ]
    return differing, [row for row in unseen if row.metric == KEPT_SCORES]


def _alone(name: str, calls: Sequence[UnknownOp]) -> str:
    """Return a clause on the calls of an operator that the second judge (torch's formulas) could not count."""
    reasons = sorted({call.why for call in calls} - {NO_FORMULA})
    return "; ".join((f"operator {name}: {unknown_clause(calls)}", *reasons))


def _merged(rows: Iterable[AlignedRow]) -> Iterator[tuple[AlignedRow, str, int]]:
    """Yield (row, path pattern, number of rows) for groups of equal rows whose paths differ only in numbers."""
    alike: dict[Hashable, list[AlignedRow]] = {}
    for row in rows:
        cells = tuple((s, c.value, c.kinds) for s, c in row.cells.items())
        alike.setdefault((row.stage, row.invocation, template(row.module)[0], row.kind, cells), []).append(row)
    for members in alike.values():
        for pattern, inside in patterns(r.module for r in members):
            yield members[0], pattern, len(inside)


def _apart(rows: Sequence[AlignedRow], unjudged: Sequence[str]) -> tuple[list[AlignedRow], list[AlignedRow]]:
    """Split differing rows into those explained by operators without a torch formula, and all others.

    An operator without a formula does work that torch's count lacks: all work of a kind that only our rules name, or
    part of its own kind. Apart from it both sides must have equal sums, since a composite operator of one side may be
    several products on the other. If the sums differ, only kinds that our rules do not name can be parts of the
    operator, and only if they do not exceed the work that torch lacks.
    """
    own = {kind_of(name) for name in unjudged}
    gaps: list[tuple[AlignedRow, int]] = []
    lacking: list[tuple[AlignedRow, int]] = []
    parts: list[tuple[AlignedRow, int]] = []
    for row in rows:
        mine, other = _said(row)
        if mine is None or other is None:
            continue
        gaps.append((row, mine - other))
        if own and mine > other and (other == 0 or any(kind_of(k) in own for k, _ in row.cells["dynamic"].kinds)):
            lacking.append(gaps[-1])
        elif mine == 0:
            parts.append(gaps[-1])
    reached: dict[int, list[AlignedRow]] = {0: []}
    for row, gap in lacking:
        for gone, some in list(reached.items()):
            reached.setdefault(gone + gap, [*some, row])
    excused = reached.get(sum(gap for _, gap in gaps))
    if excused is not None:
        return excused, [row for row in rows if None in _said(row)]
    excused = [row for row, _ in (*lacking, *parts)] if sum(gap for _, gap in (*lacking, *parts)) >= 0 else []
    return excused, [row for row in rows if row not in excused]


def _left_open(row: AlignedRow, pattern: str, count: int) -> str:
    mine, other = (f"{(value or 0) * count:,}" for value in _said(row))
    return (
        f"{row.kind} in {pattern or '(root)'}, {row.stage}: {mine} FLOP by the rules, {other} by torch's formulas, "
        "which lack an operator there"
    )


def _without_rule(row: AlignedRow, pattern: str, count: int) -> str:
    mine, other = (None if value is None else f"{value * count:,} FLOP" for value in _said(row))
    at_least = f"at least {mine}" if _said(row)[0] else "unknown"
    return (
        f"{row.kind} in {pattern or '(root)'}, {row.stage}: {at_least} by the rules, which lack an operator there, "
        f"{other} by torch's formulas"
    )


def _beyond(row: AlignedRow) -> bool:
    """Return whether torch counts more in this row than costproof's operator rules."""
    mine, other = _said(row)
    return (other or 0) > (mine or 0)


def _said(row: AlignedRow) -> tuple[int | None, int | None]:
    return _counted(row).value, row.cells["dispatcher"].value


def _counted(row: AlignedRow) -> AlignedCell:
    """Return the cell of costproof's operator rules in a row that is compared with torch's FLOP formulas."""
    return next(cell for source, cell in row.cells.items() if source != "dispatcher")


def _judge_finding(row: AlignedRow, pattern: str, count: int) -> Finding:
    mine, other = _counted(row), row.cells["dispatcher"]
    delta = None if mine.value is None or other.value is None else mine.value - other.value
    said = ", ".join(f"{kind} {value:,}" for kind, value in other.kinds if value is not None) or "nothing"
    who = "the masks of the run leave" if row.metric in KEPT else "torch's own formulas count"
    cause = Cause(
        "judge_difference", delta or 0, (*mine.ids[:3], *other.ids[:3]), accepted=False,
        note=f"{who} {said} in the same calls",
    )  # fmt: skip
    made = finding(row, Diagnosis("unexplained", delta, "dispatcher", (cause,), delta), pattern, count)
    return replace(made, id=f"judge/{made.id}", level="judge")
