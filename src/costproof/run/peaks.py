"""Implement ``costproof.peaks``: the peak of live activations of every stage, in its graph and its eager modules."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from costproof.ledger.environment import environment, require
from costproof.ledger.errors import BadInput, Incomplete, Recount, check_recounts
from costproof.ledger.mesh import FSDP_CP
from costproof.ledger.peaks import CallPeaks, Peaks, by_stage
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, Sharded, Target, WithMemory, lacking, options_of
from costproof.opgraph.rules.files import versions_in_force
from costproof.parametric.memory_checks import gathered_recounts
from costproof.parametric.targets import evaluate_formulas, live_peaks
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

    most = None
    if workload.mesh.fsdp > 1 and isinstance(model, Sharded):
        most = gathered_bytes(model, workload)
        check_recounts(gathered_recounts(model, workload, most))
    with count_lock():
        found = call_peaks(model, workload.gathered, progress, eager=eager, forms=forms)
    check_recounts(
        Recount(one.stage, f"{one.invocation}, parts of the difference of its peaks", "bytes", one.residual or 0, 0)
        for one in found
    )
    found = tuple(replace(call, gathered_bytes=most) for call in found)
    return _with_formulas(model, workload, found)


def _with_formulas(model: Target, workload: Workload, calls: tuple[CallPeaks, ...]) -> tuple[CallPeaks, ...]:
    """Add to each call the peak by the target's formula; formulas include tensors in host memory."""
    if not isinstance(model, WithMemory) or options_of(model).device == "cuda":
        return calls
    try:
        known = live_peaks(model, workload)
    except Incomplete:
        return calls
    formulas = (None if c.graph is None else known.get((c.stage, c.invocation, c.part)) for c in calls)
    return tuple(replace(call, formula=formula) for call, formula in zip(calls, formulas, strict=True))


def gathered_bytes(target: Target | None, workload: Workload) -> int | None:
    """Return the most bytes of all-gathered parameters that a rank holds at once; ``None`` if there are no formulas.

    The parameters of the root, R, stay during the forward of the model. Those of a layer, L, are put together from a
    buffer of the same size. Until that is done, the buffer of the group before is held: of equal layers that are at
    most R + 3 L, and of the first 2 R + 2 L (torch.distributed.fsdp 2.13, ``FSDPParamGroup.wait_for_unshard``). Layers
    that are gathered ahead take L more each.
    """
    if not isinstance(target, Sharded):
        return None
    nodes, axis_of = evaluate_formulas(target, workload).nodes, target.shares(workload).axis_of
    along = ("fsdp", FSDP_CP)
    gathers = [n for n in nodes if n.stage == "prefill" and n.cost("messages") and axis_of(n.role, n.kind) in along]
    root = sum(n.cost("comm_payload_bytes") or 0 for n in gathers if not n.module)  # a stage between has none
    layers = [n.cost("comm_payload_bytes") or 0 for n in gathers if n.module]
    return root + max(before + 2 * own for before, own in pairwise((root, *layers)))
