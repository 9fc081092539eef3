"""From a capture to its findings."""

from __future__ import annotations

from costproof.compare.align import align
from costproof.compare.context import context
from costproof.compare.counters import compare_counters
from costproof.compare.diagnose import module_findings
from costproof.compare.findings import Cause, Discrepancy, Finding
from costproof.compare.judges import second_judge
from costproof.compare.reached import expert_findings, uneven_experts
from costproof.compare.totals import sums
from costproof.compare.verdict import coverage, gaps, verdict_of
from costproof.ledger.capture import Capture


def compare(capture: Capture) -> Discrepancy:
    """Compare all sources of a capture, quantity by quantity.

    Pure, and without torch. See :class:`Finding` for what a delta is measured against.
    """
    rows = align(capture.ledgers)
    ctx = context(capture, rows)
    modules = module_findings(rows, ctx)
    judges, disputed = second_judge(capture)
    of_experts = (*expert_findings(capture), *uneven_experts(capture))
    findings = (*sums(capture, modules), *modules, *of_experts, *trace_findings(capture), *disputed)
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
