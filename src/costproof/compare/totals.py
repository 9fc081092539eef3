"""Build the findings on stages and the total, whose numbers and causes are sums over findings on modules.

Errors of opposite sign may cancel in a sum, so the status of a sum is never better than that of its worst row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from costproof.compare.align import gives, order
from costproof.compare.diagnose import pairwise
from costproof.compare.findings import Cause, Finding, FindingStatus
from costproof.compare.patterns import patterns
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import EVERY_METRIC, OF_BOUNDS, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger, total
from costproof.ledger.run import TracedRun

_WORST: tuple[FindingStatus, ...] = ("unexplained", "unsupported", "explained")
_EVIDENCE = 8


def sums(capture: Capture, findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding per metric for the total, then one per metric for each stage."""
    stages = [s for s in capture.target.stages if any(s in x.stages for x in capture.ledgers)]
    by_stage: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        by_stage.setdefault((found.stage, found.metric), []).append(found)
    bearers = {x.source: _bearers(x) for x in capture.ledgers}
    result = []
    for place, inside in {"total": stages, **{s: [s] for s in stages}}.items():
        for metric in (*EVERY_METRIC, *OF_BOUNDS):
            # A source has a total only if it covers all these stages.
            values = {
                x.source: _within(x, bearers[x.source].get(metric, ()), metric, inside)
                for x in capture.ledgers
                if gives(x, metric) and set(inside) <= set(x.stages)
            }
            rows = [f for s in inside for f in by_stage.get((s, metric), ())]
            if metric in STAGE_WIDE:
                # A metric of modules, such as parameters, counts each module once, even if several stages use it.
                rows = list({(f.module, f.kind): f for f in rows}.values())
            if values and rows:
                result.append(_sum(place, metric, values, rows))
    return result


def _bearers(ledger: Ledger) -> dict[Metric, list[CostNode]]:
    """Return the nodes that have a metric, in ledger order, by metric."""
    found: dict[Metric, list[CostNode]] = {}
    for node in ledger.nodes:
        for metric in {**node.costs, **node.exprs}:
            found.setdefault(metric, []).append(node)
    return found


def _within(ledger: Ledger, bearers: Iterable[CostNode], metric: Metric, stages: Sequence[str]) -> int | None:
    """Return a metric of a source summed over stages; ``None`` if any of them is unknown."""
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
    status: FindingStatus
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
    """Return the source against which the difference of a sum is measured, as in :class:`Finding`."""
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


StageCall = tuple[str, str]
"""(stage, invocation)."""


def expert_findings(capture: Capture) -> list[Finding]:
    """Return, per stage, one finding for each pattern of experts that were called equally often."""
    if capture.run is None or capture.callgraph is None:
        return []
    places = _places(capture)
    received: dict[tuple[StageCall, str], list[int]] = {}
    for run in capture.run.runs:
        for container, rows in run.expert_tokens.items():
            for number, count in enumerate(rows):
                # Experts without a module of their own are stacked matrices.
                if (expert := f"{container}.{number}") in capture.callgraph.module_types:
                    received.setdefault((_place(places, run), expert), []).append(count)
    alike: dict[StageCall, dict[int, dict[str, int]]] = {}
    for (place, expert), counts in received.items():
        alike.setdefault(place, {}).setdefault(sum(c > 0 for c in counts), {})[expert] = sum(counts)
    return [
        _finding(place, pattern, len(inside), calls, sum(rows[e] for e in inside))
        for place, groups in alike.items()
        for calls, rows in sorted(groups.items())
        for pattern, inside in patterns(rows)
    ]


def uneven_experts(capture: Capture) -> list[Finding]:
    """Return one finding for each expert whose FLOPs per token differ from those of most experts in its layer."""
    found, places = [], _places(capture)
    for run in capture.run.runs if capture.run is not None else ():
        for container, flops in run.expert_flops.items():
            rows = run.expert_tokens.get(container, ())
            if len(rows) != len(flops):
                raise _damaged(run, f"rows and FLOPs of the same experts of {container}", f"{len(rows)}, {len(flops)}")
            each = {i: Fraction(f, r) for i, (f, r) in enumerate(zip(flops, rows, strict=True)) if r}
            usual = Counter(each.values()).most_common(1)[0][0] if each else Fraction(0)
            place = _place(places, run)
            found += [
                _uneven(place, f"{container}.{i}", run.id, flops[i], usual * rows[i])
                for i, one in each.items()
                if one != usual
            ]
    return list({f.id: f for f in reversed(found)}.values())


def _places(capture: Capture) -> dict[bool, StageCall]:
    """Return (stage, invocation) of a decoder's prompt and of its decode steps, by whether it reads a cache."""
    return {"P" in i.symbols: (i.stage, i.id) for i in capture.invocations if {"S", "P"} & i.symbols.keys()}


def _place(places: dict[bool, StageCall], run: TracedRun) -> StageCall:
    step = run.context is not None
    if step not in places:
        raise _damaged(run, f"a call with {'P' if step else 'S'} among its sizes", "no such call")
    return places[step]


def _damaged(run: TracedRun, expected: str, got: str) -> BadInput:
    where = f"$.run.runs in the capture, {run.id}"
    what = "the recorded rows of each expert do not match the calls of this capture"
    return BadInput(what, where=where, expected=expected, got=got)


def _uneven(place: StageCall, expert: str, run: str, flops: int, usual: Fraction) -> Finding:
    stage, invocation = place
    delta = flops - int(usual)
    why = f"run {run}: {flops:,} FLOPs, where its rows would cost {int(usual):,} in most experts beside it"
    return Finding(
        id=f"judge/{stage}[{invocation}]/{expert}#flops",
        level="judge",
        stage=stage,
        invocation=invocation,
        module=expert,
        kind="",
        metric="flops",
        status="unexplained",
        values={"dispatcher": flops},
        delta=delta,
        causes=(Cause("judge_difference", delta, (), accepted=False, note=why),),
        residual=delta,
        reference="the other experts",
        evidence=(why,),
    )


def _finding(place: StageCall, pattern: str, count: int, calls: int, rows: int) -> Finding:
    stage, invocation = place
    return Finding(
        id=f"{stage}[{invocation}]/{pattern}#calls",
        level="module",
        stage=stage,
        invocation=invocation,
        module=pattern,
        kind="",
        metric="calls",
        status="dynamic-only" if calls else "not-executed",
        values={"dynamic": calls * count},
        delta=None,
        causes=(),
        residual=None,
        count=count,
        evidence=(f"dynamic: {rows} rows" if rows else "dynamic: no token reached them",),
    )
