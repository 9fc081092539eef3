"""The static source: costs from exported graphs, in symbols, then at the workload's sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy

from costproof.graph.account import account
from costproof.graph.active import active_elements
from costproof.graph.fvcore_macs import fvcore_nodes
from costproof.graph.graph import Graph, Value
from costproof.graph.ownership import (
    GRAPH_METRICS,
    Progress,
    graph_metrics,
    merge_nodes,
    merge_unknown,
    parameter_nodes,
    silent,
    uncollected,
)
from costproof.graph.sized import bounded, sized
from costproof.graph.steps import over_steps
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.series import CONTEXT, STEPS, sum_over_steps
from costproof.ledger.symbols import parse, text
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, PartlyExported, Target, options_of
from costproof.tracers.exported import Exported, export_graph


def static_ledger(target: Exportable, workload: Workload, progress: Progress = silent) -> Ledger:
    """Export every part of the model and cost the graphs.

    Nodes carry ``exprs`` in the workload's symbols (B, S, n, P, N …; the configuration's sizes are
    numbers in a graph) and ``costs`` at the workload. Decode costs are the closed sum over N steps.

    Raises:
        Incomplete: a part cannot be exported, or not with symbolic sizes.
    """
    progress("build the model", 0, 1)
    model = target.build(workload)
    jobs = target.export_jobs(model, workload)
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    # A loop over experts cannot be exported. The exported kernel does the same products, by other operators: what
    # a convention over operators says of it is no answer to what it says of the loop.
    loops = workload.experts == "eager"
    beside = options_of(target).convention is not None and not loops
    nodes: list[CostNode] = []
    unknown: list[UnknownOp] = []
    parameters: dict[str, tuple[tuple[int, ...], str]] = {}
    active: dict[str, int | None] = {}
    for i, job in enumerate(jobs):
        progress(f"export {job.id}", i, len(jobs))
        with uncollected():
            exported = export_graph(job)
            found, missing = job_nodes(exported)
            if beside:
                found += convention_nodes(exported, values)
        nodes += found
        unknown += unknown_ops(exported, missing, values) if missing else ()
        parameters |= exported.parameters
        active |= active_elements(exported.graph)
    progress("export", len(jobs), len(jobs))
    covered = tuple(s for s in target.info().stages if s not in left_out(target))
    owners = {path: type(module).__name__ for path, module in model.named_modules()}
    nodes += parameter_nodes(parameters, lambda path: target.stages_of(path, workload), owners, active)
    symbolic = Ledger(
        source="static",
        nodes=merge_nodes(nodes),
        metrics=graph_metrics(options_of(target)) if beside else GRAPH_METRICS,
        stages=covered,
        unknown_ops=merge_unknown(unknown),
        notes=(
            *(f"{stage} is not covered: {why}" for stage, why in left_out(target).items()),
            *dict.fromkeys(note for job in jobs for note in job.notes),
        ),
        conventions={"expert_kernel": "grouped_mm"} if loops else {},
    )
    return evaluate_ledger(symbolic, values, target.info().symbols)


def job_nodes(exported: Exported) -> tuple[list[CostNode], tuple[UnknownOp, ...]]:
    """Nodes of one export, for each invocation that it describes; decode summed over the steps."""
    job = exported.job
    calls = exported.graph.calls
    if job.own_calls:
        calls = tuple(c for c in calls if c.module in job.own_calls)
    graph = replace(exported.graph, calls=calls)
    found = account(graph, lambda module, call: (job.stage, job.invocations[0]))
    grown = cache_nodes(job.stage, job.invocations[0], exported.graph, exported.cache_inputs)
    nodes = merge_nodes((*found.nodes, *grown))
    if "P" in {size.symbol for size in job.sizes}:
        nodes = tuple(_over_steps(node) for node in nodes)
    repeated = [replace(node, invocation=i) for i in job.invocations for node in nodes]
    return repeated, found.unknown


def convention_nodes(exported: Exported, values: Mapping[tuple[str, str], Mapping[str, int]]) -> list[CostNode]:
    """Another tool's convention, for each invocation of one export: rounding has no formula, so sizes are put in first.

    Args:
        values: (stage, invocation) -> values of the workload's symbols there.
    """
    job, nodes = exported.job, list[CostNode]()
    for invocation in job.invocations:
        here, known = (job.stage, invocation), values[job.stage, invocation]

        def at(sizes: Mapping[str, int], here: tuple[str, str] = here) -> tuple[CostNode, ...]:
            return fvcore_nodes(sized(exported.graph, sizes), lambda module, call: here)

        if str(CONTEXT) not in {size.symbol for size in job.sizes}:
            nodes += at(known)
            continue
        first, count = known[str(CONTEXT)], known[str(STEPS)]
        contexts = sorted({first, first + (count - 1) // 2, first + count - 1})
        nodes += over_steps([(c, at({**known, str(CONTEXT): c})) for c in contexts], count)[0]
    return nodes


def unknown_ops(
    exported: Exported, found: Iterable[UnknownOp], values: Mapping[tuple[str, str], Mapping[str, int]]
) -> list[UnknownOp]:
    """The unknown operators of one export in all its invocations, bounded at their sizes; steps at the last of them."""
    result: list[UnknownOp] = []
    for invocation in exported.job.invocations:
        known, runs = values[exported.job.stage, invocation], 1
        if str(CONTEXT) in {size.symbol for size in exported.job.sizes}:
            runs = known[str(STEPS)]
            known = {**known, str(CONTEXT): known[str(CONTEXT)] + runs - 1}
        result += bounded(found, exported.graph, known, runs)
    return result


def left_out(target: Target) -> Mapping[str, str]:
    """Stages that cannot be exported, with the reason."""
    return target.not_exported if isinstance(target, PartlyExported) else {}


def cache_nodes(stage: str, invocation: str, graph: Graph, cache_inputs: Iterable[Value]) -> list[CostNode]:
    """What the cache holds after the run less what it held before, on the module that writes or reads it."""
    if not graph.cache_outputs:
        return []
    writer = {v.id: op.module for op in graph.ops for v in op.outputs}
    reader: dict[str, str] = {}
    for op in graph.ops:
        for value in op.tensors:
            reader.setdefault(value.id, op.module)
    growth: dict[str, sympy.Expr] = {}

    def add(value: Value, sign: int) -> None:
        module = writer.get(value.id) or reader.get(value.id, "")
        growth[module] = growth.get(module, sympy.Integer(0)) + sign * sympy.sympify(value.nbytes)

    for value in graph.cache_outputs:
        add(value, 1)
    for value in cache_inputs:
        add(value, -1)
    nodes = []
    for module, grown in growth.items():
        expr = sympy.expand(grown)
        if expr != 0:
            costs: dict[Metric, int | None] = {"kv_cache_bytes": int(expr)} if expr.is_Integer else {}
            exprs: dict[Metric, str] = {"kv_cache_bytes": text(expr)}
            nodes.append(CostNode(stage, invocation, module, "", costs, exprs))
    return nodes


def _over_steps(node: CostNode) -> CostNode:
    """Costs of N steps from the costs of the step at context P."""
    exprs: dict[Metric, str] = {}
    for metric in dict.fromkeys((*node.costs, *node.exprs)):
        if metric in node.exprs:
            one = parse(node.exprs[metric])
        else:
            value = node.costs[metric]
            if value is None:
                return replace(node, costs={metric: None})
            one = sympy.Integer(value)
        exprs[metric] = text(sum_over_steps(one) if one.free_symbols else one * STEPS)
    return replace(node, costs={}, exprs=exprs)
