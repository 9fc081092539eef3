"""Compare the sources of a capture and return its findings."""

from __future__ import annotations

from costproof.compare.align import align
from costproof.compare.causes import context
from costproof.compare.counters import compare_counters
from costproof.compare.diagnose import module_findings
from costproof.compare.findings import CAUSES, Cause, CauseKind, Discrepancy, Finding, Level
from costproof.compare.flop_counter_check import second_judge
from costproof.compare.totals import expert_findings, sums, uneven_experts
from costproof.compare.verdict import coverage, gaps, given_by, verdict_of
from costproof.ledger.capture import Capture


def compare(capture: Capture) -> Discrepancy:
    """Compare all sources of a capture, quantity by quantity.

    A pure function that does not need torch. :class:`Finding` documents which source a delta is measured against.
    """
    rows = align(capture.ledgers)
    ctx = context(capture, rows)
    modules = module_findings(rows, ctx)
    judges, disputed = second_judge(capture)
    of_experts = (*expert_findings(capture), *uneven_experts(capture))
    of_sources = (*trace_findings(capture), *size_findings(capture), *silent_findings(capture))
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
    """Return one finding for each metric that a source must give according to the target's record, but does not."""
    return [
        _finding(
            f"{ledger.source}#{metric}", _defect("silent_source", ledger.source),
            f"{ledger.source} no longer gives {metric}", stage=ledger.source, metric=metric,
        )
        for ledger in capture.ledgers
        for metric in capture.recorded.get(ledger.source, ())
        if metric not in ledger.metrics
    ]  # fmt: skip


def size_findings(capture: Capture) -> list[Finding]:
    """Return one finding for each size of a call that differs from the shapes of the inputs of a graph.

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


def _defect(kind: CauseKind, evidence: str, note: str = "") -> Cause:
    """Return a cause that explains no part of a number.

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
    """Return a finding that does not compare two numbers."""
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
