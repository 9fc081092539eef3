"""The isolated source: trace every stage separately, at the sizes that the stage has in the whole run.

The dynamic source extracts a stage from a trace of the whole model. Here only the stage runs, so the two can be
compared: the costs of a stage must not depend on what runs around it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.mesh import Mesh
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import Convention
from costproof.ledger.workload import Workload
from costproof.models.specs import ExportJob
from costproof.models.target import Staged, options_of
from costproof.opgraph.account import account, cache_nodes, settle_kept
from costproof.opgraph.costed import CostedGraph, cost_graph
from costproof.opgraph.fvcore_macs import fvcore_nodes
from costproof.opgraph.graph import path_renamer, rename_modules
from costproof.opgraph.mask_rows import QueryRowMasks
from costproof.opgraph.merge import merge_nodes
from costproof.opgraph.tally import LedgerBuilder, graph_metrics, with_owners
from costproof.patches.patch import gc_disabled
from costproof.patches.torchlens import wrapped_once
from costproof.tracers.dynamic import without_unfused_if_chosen
from costproof.tracers.paths import Paths, dtype_name, mask_inputs
from costproof.tracers.storage import resident_bytes
from costproof.tracers.torchlens_trace import TracedForward, lost_tensors, trace_forward

SCAFFOLDING: Final = "(wrapper)"
"""Prefix of the paths of a wrapper's own modules; no module of a model can have this name."""

_CACHE_ROLES: Final = ("output.1.",)
"""Name that TorchLens gives the second result of a wrapper, which is the wrapper's cache."""

_INPUT: Final = "input."
"""Prefix of the names that TorchLens gives inputs."""

_CACHE_INPUTS: Final = (f"{_INPUT}keys.", f"{_INPUT}values.")


def isolated_ledger(target: Staged, workload: Workload, progress: Progress = silent) -> Ledger:
    """Trace every invocation of every stage separately on meta, and compute the costs of the operators that ran.

    Sums over decode steps come from the first, a middle and the last one, as in the dynamic source.

    Raises:
        Incomplete: a stage cannot be traced, its wrapper computes, or the model is split over several devices.
    """
    if replace(workload.mesh, dp=1) != Mesh():
        raise Incomplete(
            "TorchLens does not follow the collectives of a split model, so no stage is traced in isolation",
            where=workload.mesh.text, fix="--sources analytic,static,dynamic",
        )  # fmt: skip
    progress("build the model", 0, 1)
    model = target.build(workload)
    runs = target.stage_runs(model, workload)
    tally = LedgerBuilder()
    notes: list[str] = []
    with wrapped_once():
        for i, run in enumerate(runs):
            progress(f"trace {run.id}", i, len(runs))
            with gc_disabled():
                traced = trace_stage(run)
                work = cost_graph(traced.graph)
                tally.add(work, *stage_nodes(run, traced, work, options_of(target).convention), run.context)
            notes += [f"run {run.id}: {p}" for p in (*traced.problems, *traced.notes)]
            tally.parameters |= _parameters(run)
            tally.buffers |= _buffers(run)
    progress("trace", len(runs), len(runs))
    nodes, bent = tally.summed(workload.new_tokens)
    owners = Paths(model).class_names()
    owned = tally.owned(lambda path: target.stages_of(path, workload), owners)
    ledger = Ledger(
        source="isolated",
        nodes=with_owners((*nodes, *owned), owners),
        metrics=graph_metrics(options_of(target)),
        stages=target.info().stages,
        unknown_ops=tally.missing(),
        notes=(*notes, *bent),
    )
    return without_unfused_if_chosen(settle_kept(ledger), target, workload)


def trace_stage(run: ExportJob) -> TracedForward:
    """Trace one stage with paths from the root of the model; only past keys and values remain as graph inputs.

    Raises:
        Incomplete: torchlens is missing or cannot trace the stage.
    """
    names = (_CACHE_ROLES, _CACHE_INPUTS) if run.returns_cache else ((), ())
    found = trace_forward(run.module, run.args, f"stage run {run.id}", *names)
    past = tuple(v for v in found.inputs if v.origin == "cache")
    graph = rename_modules(found.graph, run.prefix, SCAFFOLDING).with_calls_of(run.own_calls)
    return TracedForward(graph, past, found.problems, found.notes)


def stage_nodes(
    run: ExportJob, traced: TracedForward, work: CostedGraph, convention: Convention | None = None
) -> tuple[tuple[CostNode, ...], tuple[UnknownOp, ...]]:
    """Return the cost nodes of a traced stage run, and its unknown operators.

    Raises:
        Incomplete: the wrapper computes something itself.
    """
    here = (run.stage, run.invocations[0])

    def place(module: str, call: int) -> tuple[str, str] | None:
        return None if module.startswith(SCAFFOLDING) else here

    inside = {f"{_INPUT}{name}" if name in run.args else name for name in run.inside}
    pairs = QueryRowMasks(work.graph, mask_inputs(run.args, run.masks, _INPUT))
    found = account(work, place, inside, pairs=pairs)
    grown = cache_nodes(lambda path, call: here, traced.graph, traced.inputs)
    beside = fvcore_nodes(traced.graph, place) if convention else ()
    return merge_nodes((*found.nodes, *grown, *beside)), (*found.unknown, *lost_tensors(traced.problems, run.stage))


def _buffers(run: ExportJob) -> dict[str, int | None]:
    """Return the bytes of the model's buffers in an isolated run by full name; ``None``: unknown."""
    rename, named = path_renamer(run.prefix), Paths(run.module).buffers.items()
    return resident_bytes({outer: buffer for name, buffer in named if (outer := rename(name)) is not None})


def _parameters(run: ExportJob) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the model's parameters in an isolated run, by full name."""
    rename = path_renamer(run.prefix)
    return {
        outer: (tuple(p.shape), dtype_name(p.dtype))
        for name, p in run.module.named_parameters()
        if (outer := rename(name)) is not None
    }
