"""From a capture to its findings."""

from __future__ import annotations

from costproof.compare.align import align
from costproof.compare.context import context
from costproof.compare.counters import compare_counters
from costproof.compare.diagnose import module_findings
from costproof.compare.findings import CAUSES, Cause, Discrepancy, Finding
from costproof.compare.judges import second_judge
from costproof.compare.reached import expert_findings, uneven_experts
from costproof.compare.totals import sums
from costproof.compare.verdict import coverage, gaps, given_by, verdict_of
from costproof.ledger.capture import Capture
from costproof.ledger.workload import Invocation


def compare(capture: Capture) -> Discrepancy:
    """Compare all sources of a capture, quantity by quantity.

    Pure, and without torch. See :class:`Finding` for what a delta is measured against.
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
    """One finding for each call or edge on which the two dynamic tracers differ."""
    if capture.trace_check is None:
        return []
    return [
        Finding(
            id=f"trace/{number:03d}#calls",
            level="trace",
            stage="trace",
            invocation="",
            module="",
            kind="",
            metric="calls",
            status="unexplained",
            values={},
            delta=None,
            causes=(Cause("trace_difference", 0, (difference,), accepted=False, note=difference),),
            residual=None,
            evidence=(difference,),
        )
        for number, difference in enumerate(capture.trace_check.differences, start=1)
    ]


def silent_findings(capture: Capture) -> list[Finding]:
    """Return one finding for each metric that a source is on record to give for the target, and does not give."""
    return [
        Finding(
            id=f"{ledger.source}#{metric}",
            level="source",
            stage=ledger.source,
            invocation="",
            module="",
            kind="",
            metric=metric,
            status="unexplained",
            values={},
            delta=None,
            causes=(Cause("silent_source", 0, (ledger.source,), accepted=False, note=CAUSES["silent_source"]),),
            residual=None,
            evidence=(f"{ledger.source} no longer gives {metric}",),
        )
        for ledger in capture.ledgers
        for metric in capture.recorded.get(ledger.source, ())
        if metric not in ledger.metrics
    ]


def size_findings(capture: Capture) -> list[Finding]:
    """Return one finding for each size of a call that is another one in the shapes of what goes into a graph.

    The costs of all sources in symbols are evaluated at the sizes of the calls, so no cost shows that these are wrong.
    """
    return [
        Finding(
            id=f"{call.stage}[{call.id}]#{symbol}",
            level="source",
            stage=call.stage,
            invocation=call.id,
            module="",
            kind="",
            metric="calls",
            status="unexplained",
            values={},
            delta=None,
            causes=(Cause("input_sizes", 0, (symbol,), accepted=False, note=CAUSES["input_sizes"]),),
            residual=None,
            evidence=(_other_size(call, symbol, size, ledger.source),),
        )
        for ledger in capture.ledgers
        for call in capture.invocations
        for symbol, size in ledger.sizes.get(f"{call.stage}[{call.id}]", {}).items()
        if call.symbols.get(symbol, size) != size
    ]


def _other_size(call: Invocation, symbol: str, size: int, source: str) -> str:
    return (
        f"{symbol} of {call.stage}[{call.id}] is {call.symbols[symbol]:,} where costs are evaluated, "
        f"{size:,} in the inputs of the {source} source"
    )
