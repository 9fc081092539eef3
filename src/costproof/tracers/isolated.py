"""The isolated source: every stage traced alone, at the sizes that it has in the whole run.

The dynamic source extracts a stage from a trace of the whole model. Here the stage is all that runs,
so the two can be compared: what a stage costs must not depend on what runs around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from costproof.graph.account import account
from costproof.graph.active import active_elements
from costproof.graph.fvcore_macs import fvcore_nodes
from costproof.graph.graph import Graph, ModuleCall, OpCall, Value
from costproof.graph.ownership import (
    Progress,
    graph_metrics,
    merge_nodes,
    merge_unknown,
    parameter_nodes,
    renamer,
    silent,
    uncollected,
    with_owners,
)
from costproof.graph.steps import over_steps
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.run import Convention
from costproof.ledger.workload import Workload
from costproof.models.target import Staged, StageRun, options_of
from costproof.tracers.static import cache_nodes
from costproof.tracers.torchlens_trace import lost_tensors, trace_forward

SCAFFOLDING: Final = "(wrapper)"
"""Stands before paths inside a wrapper that are no paths of the model; no module can be called so."""

_CACHE_ROLE: Final = "output.1."
"""The second of the results of a wrapper that returns its cache, in TorchLens's words."""

_CACHE_INPUTS: Final = ("input.keys.", "input.values.")


@dataclass(frozen=True, slots=True)
class StageTraced:
    """The trace of one stage alone, in paths from the root of the model."""

    run: StageRun
    graph: Graph
    cache_inputs: tuple[Value, ...]
    """Past keys and values among the arguments."""
    problems: tuple[str, ...]
    """Tensors that TorchLens could not attribute."""


def isolated_ledger(target: Staged, workload: Workload, progress: Progress = silent) -> Ledger:
    """Trace every invocation of every stage by itself on meta and cost what ran.

    Sums over the decode steps come from the first, a middle and the last one, as in the dynamic source.

    Raises:
        Incomplete: a stage cannot be traced, or its wrapper computes.
    """
    progress("build the model", 0, 1)
    model = target.build(workload)
    runs = target.stage_runs(model, workload)
    nodes: list[CostNode] = []
    steps: list[tuple[int, tuple[CostNode, ...]]] = []
    unknown: list[UnknownOp] = []
    notes: list[str] = []
    active: dict[str, int | None] = {}
    parameters: dict[str, tuple[tuple[int, ...], str]] = {}
    for i, run in enumerate(runs):
        progress(f"trace {run.id}", i, len(runs))
        with uncollected():
            traced = trace_stage(run)
            found, missing = stage_nodes(traced, options_of(target).convention)
        unknown += missing
        notes += [f"run {run.id}: {p}" for p in traced.problems]
        active |= active_elements(traced.graph)
        parameters |= _parameters(run)
        if run.context is None:
            nodes += found
        else:
            steps.append((run.context, found))
    progress("trace", len(runs), len(runs))
    decode, bent = over_steps(steps, workload.new_tokens)
    owners = {path: type(module).__name__ for path, module in model.named_modules()}
    owned = parameter_nodes(parameters, lambda path: target.stages_of(path, workload), owners, active)
    return Ledger(
        source="isolated",
        nodes=with_owners(merge_nodes((*nodes, *decode, *owned)), owners),
        metrics=graph_metrics(options_of(target)),
        stages=target.info().stages,
        unknown_ops=merge_unknown(unknown),
        notes=(*notes, *bent),
    )


def trace_stage(run: StageRun) -> StageTraced:
    """Trace one stage alone.

    Raises:
        Incomplete: torchlens is missing or cannot trace the stage.
    """
    found = trace_forward(run.module, run.kwargs, f"stage run {run.id}", _CACHE_ROLE if run.returns_cache else None)
    past = tuple(v for v in found.inputs if run.returns_cache and v.name.startswith(_CACHE_INPUTS))
    return StageTraced(run, from_the_root(found.graph, renamer(run.prefix)), past, found.problems)


def stage_nodes(
    traced: StageTraced, convention: Convention | None = None
) -> tuple[tuple[CostNode, ...], tuple[UnknownOp, ...]]:
    """Nodes of one stage run.

    Raises:
        Incomplete: the wrapper computes something itself.
    """
    run, graph = traced.run, traced.graph
    if run.own_calls:
        graph = replace(graph, calls=tuple(c for c in graph.calls if c.module in run.own_calls))
    here = (run.stage, run.invocation)

    def place(module: str, call: int) -> tuple[str, str] | None:
        return None if module.startswith(SCAFFOLDING) else here

    found = account(graph, place)
    grown = cache_nodes(run.stage, run.invocation, graph, traced.cache_inputs)
    beside = fvcore_nodes(graph, place) if convention else ()
    return merge_nodes((*found.nodes, *grown, *beside)), (*found.unknown, *lost_tensors(traced.problems, run.stage))


def from_the_root(graph: Graph, rename: Callable[[str], str | None]) -> Graph:
    """The graph with the model's own paths and parameter names; calls of scaffolding are left out."""

    def module(path: str) -> str:
        outer = rename(path)
        return SCAFFOLDING + path if outer is None else outer

    def value(old: Value) -> Value:
        return replace(old, name=rename(old.name) or old.name) if old.origin in ("param", "buffer") else old

    def op(old: OpCall) -> OpCall:
        return replace(
            old,
            module=module(old.module),
            tensors=tuple(value(v) for v in old.tensors),
            names={name: value(v) for name, v in old.names.items()},
        )

    parents = {(c.module, c.call): c.parent for c in graph.calls}

    def parent(of: tuple[str, int] | None) -> tuple[str, int] | None:
        while of is not None:
            outer = rename(of[0])
            if outer is not None:
                return outer, of[1]
            of = parents.get(of)
        return None

    return Graph(
        ops=tuple(op(o) for o in graph.ops),
        outputs=tuple(value(v) for v in graph.outputs),
        cache_outputs=tuple(value(v) for v in graph.cache_outputs),
        calls=tuple(
            ModuleCall(outer, c.call, parent(c.parent), c.class_name)
            for c in graph.calls
            if (outer := rename(c.module)) is not None
        ),
    )


def _parameters(run: StageRun) -> dict[str, tuple[tuple[int, ...], str]]:
    """Full name -> shape and dtype of the parameters inside a wrapper that are the model's."""
    rename = renamer(run.prefix)
    return {
        outer: (tuple(p.shape), str(p.dtype).removeprefix("torch."))
        for name, p in run.module.named_parameters()
        if (outer := rename(name)) is not None
    }
