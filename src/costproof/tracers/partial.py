"""The static source for some of a target's exports, symbolic or at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costproof.graph.active import active_elements
from costproof.graph.ownership import GRAPH_METRICS, merge_nodes, merge_unknown, parameter_nodes, uncollected
from costproof.ledger.evaluate import evaluate, evaluate_ledger
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.symbols import parse
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, ExportJob
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.static import job_nodes

if TYPE_CHECKING:
    from torch import nn

Values = Mapping[tuple[str, str], Mapping[str, int]]


def partial_ledger(
    target: Exportable,
    workload: Workload,
    values: Values,
    *,
    model: nn.Module | None = None,
    jobs: Sequence[ExportJob] | None = None,
    pick: Callable[[ExportJob], bool] = lambda job: True,
    concrete: bool = False,
    export: Callable[[ExportJob], Exported] = export_graph,
) -> Ledger:
    """Export the jobs that ``pick`` takes and cost them.

    Args:
        values: (stage, invocation) -> values of the workload's symbols there.
        model: the target's model for this workload, if it is already built.
        jobs: these exports of the model; the target's own unless given.
        concrete: export at the sizes of ``values`` instead of with symbols, three times as fast;
            nothing but integers comes out. A step is then one step: N must be 1.

    Raises:
        Incomplete: a part cannot be exported.
    """
    model = target.build(workload) if model is None else model
    nodes: list[CostNode] = []
    unknown: list[UnknownOp] = []
    parameters: dict[str, tuple[tuple[int, ...], str]] = {}
    active: dict[str, int | None] = {}
    stages: dict[str, None] = {}
    for job in target.export_jobs(model, workload) if jobs is None else jobs:
        if not pick(job):
            continue
        made = resized(job, values[job.stage, job.invocations[0]]) if concrete else job
        with uncollected():
            exported = export(made)
            found, missing = job_nodes(exported)
        nodes += found
        unknown += missing
        parameters |= exported.parameters
        active |= active_elements(exported.graph)
        stages[job.stage] = None
    owners = {path: type(module).__name__ for path, module in model.named_modules()}
    owned = parameter_nodes(parameters, lambda path: target.stages_of(path, workload), owners, active)
    symbolic = Ledger(
        source="static",
        nodes=merge_nodes([*nodes, *(n for n in owned if n.stage in stages)]),
        metrics=GRAPH_METRICS,
        stages=tuple(s for s in target.info().stages if s in stages),
        unknown_ops=merge_unknown(unknown),
    )
    return evaluate_ledger(symbolic, {k: dict(v) for k, v in values.items()}, target.info().symbols)


def resized(job: ExportJob, values: Mapping[str, int]) -> ExportJob:
    """The job with example inputs of the given sizes, all of them constants of the export."""
    wanted: dict[tuple[str | int, ...], dict[int, int]] = {}
    for size in job.sizes:
        wanted.setdefault(tuple(size.argument), {})[size.dim] = evaluate(parse(size.symbol), values)

    def made(path: tuple[str | int, ...], value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [made((*path, i), v) for i, v in enumerate(value)]
        if path not in wanted:
            return value
        shape = [wanted[path].get(i, int(dim)) for i, dim in enumerate(value.shape)]
        return value.new_empty(shape)

    return replace(job, args={name: made((name,), value) for name, value in job.args.items()}, sizes=())
