"""Implement ``costproof.capture``, ``costproof.report`` and ``costproof.explain``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from costproof.ledger.capture import Capture, WholeModel
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, first_line
from costproof.ledger.mesh import PAIRS
from costproof.ledger.metrics import METRICS, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import ALL_SOURCES, RunOptions
from costproof.ledger.workload import Workload
from costproof.models.specs import Truncation
from costproof.models.target import Truncatable, Uncut, WithFormulas, lacking
from costproof.parametric.targets import evaluate_formulas
from costproof.reports.report import Report, check_report_folder, write_report
from costproof.run.capture import count_sources
from costproof.run.count_lock import count_lock
from costproof.run.counters import record_counters
from costproof.run.peaks import measure_peaks
from costproof.run.prepare import Prepared, load_run_target, prepare
from costproof.run.request import RunRequest, request
from costproof.views.explanation import Explanation, check_stage, no_formulas
from costproof.views.explanation import explain as explained
from costproof.views.quantities import TOTAL, provides, value


def capture(target: str | RunRequest, *, progress: Progress = silent, **choices: Any) -> Capture:
    """Count a target at a workload, and return the capture.

    Raises:
        BadInput: target, configuration, workload or sources are invalid.
        Incomplete: a source failed.
    """
    return _count(request(target, **choices), progress).capture


def report(
    target: str | RunRequest, *, out: str | os.PathLike[str] | None = None, progress: Progress = silent, **choices: Any
) -> Report:
    """Count a target, compare the sources, and write a folder of reports if ``out`` is given.

    Raises:
        BadInput, Incomplete: as :func:`capture`; also if ``out`` cannot be written.
    """
    if out is not None:
        check_report_folder(Path(out))
    asked = request(target, **choices)
    found = _count(asked, progress)
    progress("compare", 0, 1)
    found.discrepancy  # noqa: B018  (computed here, so that the phase is the comparison's)
    progress("compare", 1, 1)
    if out is not None:
        write_report(found, Path(out), progress, source=asked.source(Path(out)))
    return found


def _count(asked: RunRequest, progress: Progress) -> Report:
    with count_lock(asked.rules):
        progress("load", 0, 1)
        prepared = prepare(asked)
        progress("load", 1, 1)
        found = count_sources(prepared, progress)
        whole = whole_model(prepared, found.capture, lambda again: count_sources(again).capture, progress)
        found = replace(found, capture=replace(found.capture, whole=whole))
        if prepared.peaks:
            peaks = measure_peaks(prepared.target, prepared.workload, progress)
            found = replace(found, capture=replace(found.capture, peaks=peaks))
        if not prepared.counters:
            return found
        record, spent = record_counters(prepared.target, prepared.workload, prepared.counters, progress=progress)
        return replace(found, capture=replace(found.capture, counters=record), spent=spent)


def explain(
    target: str | RunRequest | Capture,
    stage: str,
    *,
    module: str | None = None,
    metric: str = "flops",
    graph: Capture | None = None,
    **choices: Any,
) -> Explanation:
    """Break down one metric of a stage by formula; torch is not needed.

    Args:
        target: a target to count, or a capture, which has its own formulas and graphs.
        stage: the stage.
        module: glob pattern of module paths.
        metric: the metric.
        graph: a capture whose graph nodes are listed next to the formulas; ignored if its configuration or workload
            differs.
        choices: choices of a run.

    Raises:
        BadInput: there is no such target, stage, metric or module.
    """
    if isinstance(target, Capture):
        return explained(target, stage, module=module, metric=metric, graph=target)
    asked = request(target, **{**choices, "sources": ("analytic",)})
    with count_lock(asked.rules):
        loaded = load_run_target(asked)
        # Before the workload, whose errors do not matter without formulas; there the stages need the module.
        if stage != TOTAL:
            check_stage(stage, loaded.info().stages)
        if why := lacking(loaded, asked.sources):
            raise no_formulas(loaded.name, why["analytic"], asked.target, stage)
        prepared = prepare(asked, loaded)
        counted = count_sources(prepared).capture
        fits = graph is not None and (graph.target, graph.workload) == (counted.target, counted.workload)
        return explained(counted, stage, module=module, metric=metric, graph=graph if fits else None)


_OF: Final = {"FLOPs": "flops", "calls of modules": "calls"}
"""Metric of the extrapolated ledger that must equal a quantity of a meta-device run of all layers, by that quantity."""
_ALONE: Final = ("params", "weight_bytes", "flops", "calls")
"""Metrics that are reported even if other quantities of the run of all layers differ."""


def whole_model(
    run: Prepared, capture: Capture, count: Callable[[Prepared], Capture], progress: Progress = silent
) -> WholeModel | None:
    """Return the costs of all layers of a model that was counted with its first layers; ``None`` if no layer was cut.

    Work inside a remaining layer counts once for every layer that it represents, other work once. The model is counted
    again with more layers. Metrics for which both counts predict different totals are left out, as are peaks, which are
    not sums over layers. Finally the whole model runs once on the meta device, and only FLOPs and calls are counted by
    torch's own tools: where they differ from the prediction, metrics of that run are left out.

    Args:
        run: the run that was counted.
        capture: its capture.
        count: counts another target in the same way.
        progress: called with the steps.
    """
    if isinstance(run.target, Uncut):
        return _by_formulas(run.target.uncut(), run.workload) if run.target.info().cut else None
    if not isinstance(run.target, Truncatable) or (found := run.target.stretched()) is None:
        return None
    stretch, deeper, more = found
    times, beyond = dict(stretch.times), dict(more.times)
    checked = {path: len(beyond[path]) if path in beyond else sum(t) for path, t in times.items()}
    if idle := sorted(path for path, layers in checked.items() if layers == len(times[path])):
        return _unknown_model(times, checked, f"the second count has as many layers in {idle[0]} as the first")
    progress("whole model", 0, 1)
    try:
        second = count(replace(run, target=deeper))
    except Incomplete as error:
        return _unknown_model(times, checked, error.line)
    progress("whole model", 1, 1)
    pairs = [
        (_scale(capture.by_source[source], stretch), _scale(second.by_source[source], more))
        for source in ALL_SOURCES
        if source in capture.by_source and source in second.by_source
    ]
    if not pairs:
        return _unknown_model(times, checked, "the two counts have no source in common")
    stages: dict[str, dict[Metric, int]] = {stage: {} for stage in capture.target.stages}
    totals: dict[Metric, int] = {}
    left: dict[Metric, str] = {}
    for metric in METRICS:
        for stage, costs in ((None, totals), *reversed(stages.items())):
            predicted = _agreed_total([p for p in pairs if provides(p[0], metric, stage)], metric, stage)
            if isinstance(predicted, int):
                costs[metric] = predicted
            elif predicted:
                left[metric] = predicted
        if metric in left:
            totals.pop(metric, None)
    if (params := totals.get("params", stretch.parameters)) != stretch.parameters:
        for metric in STAGE_WIDE & totals.keys():
            left[metric] = f"the whole model has {stretch.parameters:,} parameters, its layers say {params:,}"
            for costs in (totals, *stages.values()):
                costs.pop(metric, None)
    progress("all layers", 0, 1)
    against, not_run = _all_layers(run.target, run.workload, stretch) if totals else ({}, "nothing is said")
    progress("all layers", 1, 1)
    for metric in METRICS if against else ():
        # FLOPs and calls are verified by the run itself.
        if why := against.get(metric, "" if metric in _ALONE else next(iter(against.values()))):
            left.setdefault(metric, why)
            for costs in (totals, *stages.values()):
                costs.pop(metric, None)
    return WholeModel(times, checked, stages, totals, left, not_run)


def _by_formulas(target: WithFormulas, workload: Workload) -> WholeModel:
    """Return the costs of all layers by the target's formulas, for a run that was cut to a few layers.

    They are unknown if tokens are routed by a file, which has only the layers of the run.
    """
    try:
        ledger = evaluate_formulas(target, workload)
    except BadInput:
        if PAIRS not in workload.inputs:
            raise
        return _unknown_model({}, {}, f"the routing of --{PAIRS} has only the layers that are counted")
    given = [metric for metric in METRICS if metric in ledger.metrics]
    stages = {s: {m: v for m in given if (v := ledger.stage_total(s, m)) is not None} for s in ledger.stages}
    totals = {m: v for m in given if (v := ledger.total(m)) is not None}
    left = {m: "a part of it is unknown to the formulas" for m in given if m not in totals}
    return WholeModel(
        {}, {}, stages, totals, left, "its formulas are evaluated, and nothing else counts all layers here"
    )


def _all_layers(target: Truncatable, workload: Workload, stretch: Truncation) -> tuple[dict[str, str], str]:
    """Run all layers on meta; return the differences from the predicted sums by quantity, and why no run succeeded."""
    from costproof.tracers.equal_layers import PLACES, module_work

    refused: list[str] = []
    against: dict[str, str] = {}
    for place in PLACES:
        try:
            own = module_work(target.uncut(), workload, place)
            kept = module_work(target.with_options(RunOptions()), workload, place)
        except Exception as error:  # models are third-party code, which may raise anything
            refused.append(error.line if isinstance(error, CostproofError) else first_line(error))
            continue
        for first, whole in zip(kept, own, strict=True):
            predicted, does = first.sums(stretch.of), whole.sums(lambda path: 1)
            for what in (what for what in does if predicted[what] != does[what]):
                in_all = f"a run of all layers has {does[what]:,} {what} in the {whole.run}"
                why = f"{in_all}, its layers say {predicted[what]:,}"
                against.setdefault(_OF.get(what, what), why)
        return against, ""
    return {}, refused[0]


def _unknown_model(times: dict[str, tuple[int, ...]], checked: dict[str, int], why: str) -> WholeModel:
    return WholeModel(times, checked, {}, {}, dict.fromkeys(METRICS, why))


def _scale(ledger: Ledger, stretch: Truncation) -> Ledger:
    """Return the ledger with each node multiplied by the number of layers that it represents."""

    def scaled(node: CostNode) -> CostNode:
        times = stretch.of(node.module)
        costs = {m: None if (cost := node.cost(m)) is None else times * cost for m in {*node.costs, *node.exprs}}
        return replace(node, costs=costs, exprs={})

    return replace(ledger, nodes=tuple(map(scaled, ledger.nodes)))


def _agreed_total(pairs: Sequence[tuple[Ledger, Ledger]], metric: Metric, stage: str | None) -> int | str:
    """Return the total of all layers on which the counts of all sources agree, or a reason why there is none."""
    predicted = [tuple(value(ledger, metric, stage) for ledger in pair) for pair in pairs]
    known = {number for pair in predicted for number in pair}
    if None in known:
        return "unknown in the layers that were counted"
    if any(first != second for first, second in predicted):
        return "it does not grow layer by layer: the two counts lead to two numbers"
    return known.pop() or 0 if len(known) == 1 else "the sources say different numbers" if known else ""
