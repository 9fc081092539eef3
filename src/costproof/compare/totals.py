"""Build the findings for stages and the total: sums of rows, with the causes of their rows.

Errors of opposite sign may cancel in a sum, so the status of a sum is never better than that of its worst row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from costproof.compare.align import order
from costproof.compare.diagnose import pairwise
from costproof.compare.findings import Cause, Finding, Status
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import EVERY_METRIC, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger, total

_WORST: tuple[Status, ...] = ("unexplained", "unsupported", "explained")
_EVIDENCE = 8


def sums(capture: Capture, findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding per metric for the total, then one per stage and metric."""
    stages = [s for s in capture.target.stages if any(s in x.stages for x in capture.ledgers)]
    by_stage: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        by_stage.setdefault((found.stage, found.metric), []).append(found)
    bearers = {x.source: _bearers(x) for x in capture.ledgers}
    result = []
    for place, inside in {"total": stages, **{s: [s] for s in stages}}.items():
        for metric in EVERY_METRIC:
            # A source has a total only if it covers all these stages.
            values = {
                x.source: _within(x, bearers[x.source].get(metric, ()), metric, inside)
                for x in capture.ledgers
                if metric in x.metrics and set(inside) <= set(x.stages)
            }
            rows = [f for s in inside for f in by_stage.get((s, metric), ())]
            if metric in STAGE_WIDE:
                # A metric of modules, such as parameters, counts each module once, even if several stages use it.
                rows = list({(f.module, f.kind): f for f in rows}.values())
            if values and rows:
                result.append(_sum(place, metric, values, rows))
    return result


def _bearers(ledger: Ledger) -> dict[Metric, list[CostNode]]:
    """Return the nodes that have each metric, in the order of the ledger."""
    found: dict[Metric, list[CostNode]] = {}
    for node in ledger.nodes:
        for metric in {**node.costs, **node.exprs}:
            found.setdefault(metric, []).append(node)
    return found


def _within(ledger: Ledger, bearers: Iterable[CostNode], metric: Metric, stages: Sequence[str]) -> int | None:
    """Sum a metric of a source over stages, for stage-wide metrics each module once; None if a stage is unknown."""
    if any(ledger.hides(metric, stage) for stage in stages):
        return None
    return total((n for n in bearers if n.stage in stages), metric)


def _sum(stage: str, metric: Metric, values: Mapping[str, int | None], rows: Sequence[Finding]) -> Finding:
    sources = order(values)
    statuses = {f.status for f in rows}
    reference = _reference(sources, values, rows)
    first = values[sources[0]]
    second = values[reference] if reference else None
    delta = first - second if first is not None and second is not None else None
    causes = _causes(rows, reference)
    residual = None if delta is None else delta - sum(c.amount for c in causes if c.accepted)
    status: Status
    if "unexplained" in statuses:
        status = "unexplained"
    elif None in values.values():
        status = "unsupported"
    elif len(sources) == 1:
        status = next(
            (f.status for f in rows if f.status.endswith("-only") or f.status == "not-executed"), rows[0].status
        )
    else:
        status = next((s for s in _WORST if s in statuses), "exact")
        if (status == "exact" and delta) or residual:
            status = "unexplained"
    notes: tuple[str, ...] = ()
    if status == "unexplained" and delta == 0:
        notes = ("the sum agrees, but rows of it do not: errors cancel, or formulas differ elsewhere",)
    return Finding(
        id=f"{stage}#{metric}",
        level="total" if stage == "total" else "stage",
        stage=stage,
        invocation="",
        module="",
        kind="",
        metric=metric,
        status=status,
        values={s: values[s] for s in sources},
        delta=delta,
        causes=causes,
        residual=residual,
        reference=reference,
        deltas=pairwise(values),
        count=sum(f.count for f in rows),
        evidence=notes,
    )


def _reference(sources: Sequence[str], values: Mapping[str, int | None], rows: Sequence[Finding]) -> str | None:
    """Return the source that the sum's delta is measured against: see :class:`Finding`."""
    if len(sources) < 2:
        return None
    for status in ("unexplained", "explained"):
        for found in rows:
            if found.status == status and found.delta and found.reference in values:
                return found.reference
    others = sorted(sources[1:], key=lambda s: (s != "dynamic", sources.index(s)))
    return next((s for s in others if values[s] != values[sources[0]]), others[0])


def _causes(rows: Iterable[Finding], reference: str | None) -> tuple[Cause, ...]:
    merged: dict[tuple[str, bool, str], Cause] = {}
    for found in rows:
        if found.delta and found.reference != reference:
            continue
        for cause in found.causes:
            key = (cause.kind, cause.accepted, cause.note if cause.accepted and cause.amount else "")
            before = merged.get(key)
            evidence = (*(before.evidence if before else ()), found.id)
            amount = cause.amount + (before.amount if before else 0)
            note = cause.note if before is None or before.note == cause.note else ""
            merged[key] = replace(cause, amount=amount, evidence=evidence, expression=None, note=note)
    return tuple(
        c
        if len(c.evidence) <= _EVIDENCE
        else replace(c, evidence=(*c.evidence[:_EVIDENCE], f"and {len(c.evidence) - _EVIDENCE} more"))
        for c in merged.values()
    )
