"""The verbs ``capture``, ``report`` and ``explain``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from costproof.ledger.capture import Capture
from costproof.ledger.progress import Progress, silent
from costproof.models.target import lacking
from costproof.reports.report import Report, check_report_folder, write_report
from costproof.run.capture import count_sources
from costproof.run.count_lock import count_lock
from costproof.run.counters import record_counters
from costproof.run.extrapolate import whole_model
from costproof.run.peaks import measure_peaks
from costproof.run.prepare import prepare
from costproof.run.request import RunRequest, request
from costproof.views.explanation import Explanation, check_stage, no_formulas
from costproof.views.explanation import explain as explained


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
        prepared = prepare(asked)
        check_stage(stage, prepared.target.info().stages)
        if why := lacking(prepared.target, prepared.sources):
            raise no_formulas(prepared.target.name, why["analytic"], asked.target, stage)
        counted = count_sources(prepared).capture
        fits = graph is not None and (graph.target, graph.workload) == (counted.target, counted.workload)
        return explained(counted, stage, module=module, metric=metric, graph=graph if fits else None)
