"""Implement ``costproof.counters``: run third-party FLOP counters and compare them with our own count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from costproof.claims import judge_claims
from costproof.claims.reading import own_claims
from costproof.claims.types import TOTAL, ClaimsFile
from costproof.compare.counters import compare_counters
from costproof.compare.findings import CounterComparison, CounterFinding
from costproof.ledger.capture import Capture
from costproof.ledger.counter import CounterCall, CounterRecord, CounterUsage
from costproof.ledger.environment import advice, require
from costproof.ledger.errors import BadInput
from costproof.ledger.node import exact_sum
from costproof.ledger.plural import plural
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.registry import mistakes_of
from costproof.models.target import Target, WithFormulas
from costproof.parametric.targets import evaluate_formulas
from costproof.processes import Limits
from costproof.run.capture import count_sources
from costproof.run.count_lock import count_lock
from costproof.run.prepare import check_names, prepare, require_exportable
from costproof.run.request import RunRequest, request
from costproof.tracers.counters.running import GIB, run_counters
from costproof.tracers.static import stages_not_exported
from costproof.views.counters import CounterReport, OwnNumber

SECONDS, MEMORY_GIB = 600, 4
"""Default limits of one counter: seconds and GiB of memory."""


def counters(
    target: str | RunRequest,
    *,
    stages: Iterable[str] = (),
    only: Iterable[str] | None = None,
    own: Iterable[str] = (),
    seconds: int = SECONDS,
    memory_gib: int = MEMORY_GIB,
    progress: Progress = silent,
    **choices: Any,
) -> CounterReport:
    """Run third-party FLOP counters on a target, and explain each by our own count of the same forward passes.

    Args:
        target: the target.
        stages: stages of the target (default: all).
        only: names of counters (default: all).
        own: numbers of your own, ``"mine@sam=571.92G"``, or CSV files of them.
        seconds, memory_gib: limits of one counter.
        progress: called with the steps.
        choices: choices of a run.

    Raises:
        BadInput: target, stage, counter, number or workload are invalid.
        Incomplete: a counter that was requested by name is not installed.
    """
    asked = request(target, **{**choices, "sources": ("analytic",)})
    own = tuple(own)
    with count_lock(asked.rules):
        prepared = prepare(request(asked, counters=only if only is not None else asked.counters or ("all",)))
        model, run = prepared.target, one_step(prepared.workload)
        wanted = tuple(stages)
        check_names("stage", wanted, model.info().stages, "--stage")
        # Claims are judged by formulas or an export; without either, a run determines the inputs of the model.
        truth = "analytic" if isinstance(model, WithFormulas) else "static" if own else "dynamic"
        capture = count_sources(replace(prepared, workload=run, sources=(truth,))).capture
        places = {s: [i.id for i in capture.invocations if i.stage == s] for s in model.info().stages}
        files = own_claims(own, places, wanted[0] if len(wanted) == 1 else TOTAL)
        record, spent = record_counters(
            model, run, prepared.counters, stages=wanted, seconds=seconds, memory_gib=memory_gib, progress=progress
        )
    compared = compare_counters(record)
    return CounterReport(
        conventions=capture.conventions,
        target=capture.target,
        workload=run,
        environment=capture.environment,
        compared=compared,
        spent=spent,
        own=tuple(number for file in files for number in judge_own_numbers(file, capture, compared)),
    )


def one_step(run: Workload) -> Workload:
    """Return the workload with at most one decode step, since a counter measures a single forward."""
    return replace(run, new_tokens=min(run.new_tokens, 1))


def record_counters(
    model: Target,
    run: Workload,
    names: tuple[str, ...],
    *,
    stages: tuple[str, ...] = (),
    seconds: int = SECONDS,
    memory_gib: int = MEMORY_GIB,
    progress: Progress = silent,
) -> tuple[CounterRecord, dict[str, CounterUsage]]:
    """Run counters and our own count on the same forwards, and compare our count with the closed formulas.

    Returns:
        The results of the counters, and the resources that each needed.

    Raises:
        BadInput: a limit is invalid, or the target has nothing that a counter could run.
        Incomplete: torch or a tracer is not installed.
    """
    if seconds < 1 or memory_gib < 1:
        raise BadInput("a limit must be at least 1", where="--timeout, --memory", got=min(seconds, memory_gib))
    if max(run.mesh.tp, run.mesh.pp, run.mesh.cp) > 1:
        raise BadInput(
            "counters know nothing of the ranks that a model is split over", where=run.mesh.text, expected="tp 1, pp 1",
            fix="costproof report counts a rank",
        )  # fmt: skip
    require("trace", "the truth beside counters")
    run = one_step(run)
    limits = Limits(seconds, memory_gib * GIB)
    progress("counters", 0, len(names) + 1)
    found, spent = run_counters(require_exportable(model), run, names, limits, stages=stages, progress=progress)
    truth, notes = check_truth(model, run, found.truth)
    absent = [r.info.name for r in found.runs if r.version is None and not r.calls]
    skipped = (f"Not installed, so skipped: {', '.join(absent)}. {advice('counters')}",) if absent else ()
    return CounterRecord(truth, found.runs, (*notes, *skipped)), spent


def judge_own_numbers(file: ClaimsFile, capture: Capture, compared: CounterComparison) -> list[OwnNumber]:
    """Judge the numbers that a user gave, and list the counters that print the same numbers."""
    truth = "our own count of the same forward"
    if "analytic" in (ledger.source for ledger in capture.ledgers):
        truth = f"the formulas of the target, which {truth} equals"
    found = judge_claims(file, capture, mistakes_of(capture.target.name), truth=truth)
    rows = (*compared.findings, *compared.totals)
    return [
        OwnNumber(
            name=file.title,
            unit=claim.conventions.get("unit", ""),
            judgement=judgement,
            printed_by=tuple(
                dict.fromkeys(
                    _place(f) for f in rows if f.value is not None and judgement.low <= f.value <= judgement.high
                )
            ),
        )
        for claim, judgement in zip(file.claims, found.judgements, strict=True)
    ]


def _place(found: CounterFinding) -> str:
    where = f"{found.stage}[{found.invocation}]" if found.invocation else found.stage
    return f"{found.counter} on {where}" if found.stage != TOTAL else f"{found.counter} in all"


def check_truth(
    model: Target, run: Workload, truth: tuple[CounterCall, ...]
) -> tuple[tuple[CounterCall, ...], tuple[str, ...]]:
    """Compare our count with the closed formulas, call by call; a call that differs gets an error.

    Returns:
        The calls, and notes on the comparison.
    """
    if not isinstance(model, WithFormulas):
        return truth, ("The target has no formulas that the truth could be checked with.",)
    formulas = evaluate_formulas(model, run)
    parts: dict[tuple[str, str], list[CounterCall]] = {}
    for call in truth:
        parts.setdefault((call.stage, call.invocation), []).append(call)
    wrong: dict[tuple[str, str], str] = {}
    equal = 0
    for place, calls in parts.items():
        if all(c.error is None for c in calls):
            flops, expected = exact_sum(c.value for c in calls), formulas.stage_total(place[0], "flops", place[1])
            if flops is None or flops != expected:
                ours, theirs = ("null" if v is None else v for v in (flops, expected))
                wrong[place] = f"the reference count, {ours}, disagrees with the formulas, {theirs}"
            else:
                equal += 1
    return (
        tuple(replace(c, error=c.error or wrong.get((c.stage, c.invocation))) for c in truth),
        (
            f"The truth equals the closed formulas in {equal:,} of {plural(len(parts), 'invocation')}.",
            *(f"{stage} is not counted here: {why}." for stage, why in stages_not_exported(model).items()),
        ),
    )
