"""Implement ``costproof.peaks``: the peak of live activations of every stage, in its graph and its eager modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costproof.ledger.environment import environment, require
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.peaks import CallPeaks, Peaks, by_stage
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, Target, WithMemory, lacking, options_of
from costproof.opgraph.rules.files import versions_in_force
from costproof.parametric.targets import live_peaks
from costproof.run.count_lock import count_lock
from costproof.run.prepare import prepare
from costproof.run.request import RunRequest, request


def peaks(target: str | RunRequest, *, progress: Progress = silent, **choices: Any) -> Peaks:
    """Return the peak of live activations of every stage, by liveness over its graph and in eager mode.

    Nothing is computed and no tensor is allocated; sizes are those of a run on the CPU.

    Args:
        target: the target.
        progress: called with the steps.
        choices: choices of a run.

    Raises:
        BadInput: target, configuration or workload are invalid, or the target cannot be exported.
        Incomplete: torch is not installed.
    """
    asked = request(target, **{**choices, "sources": ("static",)})
    with count_lock(asked.rules):
        progress("load", 0, 1)
        prepared = prepare(asked)
        progress("load", 1, 1)
        model, workload = prepared.target, prepared.workload
        calls = measure_peaks(model, workload, progress)
        header = (model.conventions(workload), model.info(), workload, environment() | versions_in_force())
        return Peaks(*header, stages=by_stage(calls), calls=calls)


def measure_peaks(
    model: Target, workload: Workload, progress: Progress = silent, *, eager: bool = True, forms: bool = True
) -> tuple[CallPeaks, ...]:
    """Return the activation peaks of every call of every stage, in the graph and in the eager module.

    Args:
        model: the target.
        workload: the workload.
        progress: called with the steps.
        eager: whether to find eager peaks besides those of graphs.
        forms: whether to give peaks of graphs as expressions too.

    Raises:
        BadInput: the target cannot be exported.
        Incomplete: torch is not installed.
    """
    if not isinstance(model, Exportable):
        raise BadInput(
            "this target has no graph in which a peak can be found",
            where=model.name,
            got=lacking(model, ["static"])["static"],
        )
    require("trace", "a peak of a graph or of a run")
    from costproof.tracers.peaks.calls import call_peaks  # imports torch

    with count_lock():
        found = call_peaks(model, workload, progress, eager=eager, forms=forms)
    return _with_formulas(model, workload, found)


def _with_formulas(model: Target, workload: Workload, calls: tuple[CallPeaks, ...]) -> tuple[CallPeaks, ...]:
    """Add the peak by the target's formula to each call; formulas count tensors on the host too."""
    if not isinstance(model, WithMemory) or options_of(model).device == "cuda":
        return calls
    try:
        known = live_peaks(model, workload)
    except Incomplete:
        return calls
    formulas = (None if c.graph is None else known.get((c.stage, c.invocation, c.part)) for c in calls)
    return tuple(replace(call, formula=formula) for call, formula in zip(calls, formulas, strict=True))
