"""The static source: costs from exported graphs, in symbols, then at the workload's sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from costproof.graph.account import account, cache_nodes
from costproof.graph.costed import Costed, costed
from costproof.graph.fvcore_macs import fvcore_nodes
from costproof.graph.merge import merge_nodes
from costproof.graph.sized import bounded, sized
from costproof.graph.steps import every_step, over_steps
from costproof.graph.tally import Tally, graph_metrics
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import RunOptions
from costproof.ledger.series import CONTEXT, STEPS
from costproof.ledger.workload import Workload
from costproof.models.serving import options_of
from costproof.models.target import Exportable, ExportJob, PartlyExported, Target
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.paths import Paths
from costproof.tracers.readonly import uncollected

if TYPE_CHECKING:
    from torch import nn

Values = Mapping[tuple[str, str], Mapping[str, int]]
"""(stage, invocation) -> values of the workload's symbols there."""


def static_ledger(target: Exportable, workload: Workload, progress: Progress = silent) -> Ledger:
    """Export every part of the model and cost the graphs.

    Nodes carry ``exprs`` in the workload's symbols (B, S, n, P, N …; the configuration's sizes are
    numbers in a graph) and ``costs`` at the workload. Decode costs are the closed sum over N steps.

    Raises:
        Incomplete: a part cannot be exported, or not with symbolic sizes.
    """
    progress("build the model", 0, 1)
    model = target.build(workload)
    covered = tuple(s for s in target.info().stages if s not in left_out(target))
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    return exported_ledger(target, workload, model, target.export_jobs(model, workload), covered, values, progress)


def exported_ledger(
    target: Exportable,
    workload: Workload,
    model: nn.Module,
    jobs: Sequence[ExportJob],
    stages: Sequence[str],
    values: Values,
    progress: Progress = silent,
    export: Callable[[ExportJob], Exported] | None = None,
) -> Ledger:
    """The static ledger of some exports of a model.

    Args:
        jobs: the exports; without symbolic sizes (:func:`.exported_sizes.resized`) only integers come out, three
            times as fast, and a step is then one step: N must be 1.
        stages: the stages that they cover.
        values: for every invocation of the jobs.

    Raises:
        Incomplete: a part cannot be exported.
    """
    # Where the exported graph is not what runs (it holds another kernel of experts), a convention over operators
    # says nothing of the run.
    departs = {key: value for job in jobs for key, value in job.conventions.items()}
    beside = options_of(target).convention is not None and not departs
    tally = Tally()
    for i, job in enumerate(jobs):
        progress(f"export {job.id}", i, len(jobs))
        with uncollected():
            exported = (export or export_graph)(job)
            work = costed(exported.graph)
            found, missing = job_nodes(exported, work)
            if beside:
                found += convention_nodes(exported, values)
            tally.add(work, found, unknown_ops(exported, work, missing, values))
        tally.parameters |= exported.parameters
    progress("export", len(jobs), len(jobs))
    owned = tally.owned(lambda path: target.stages_of(path, workload), Paths(model).class_names())
    symbolic = Ledger(
        source="static",
        nodes=merge_nodes((*tally.nodes, *(n for n in owned if n.stage in stages))),
        metrics=graph_metrics(options_of(target) if beside else RunOptions()),
        stages=tuple(stages),
        unknown_ops=tally.missing(),
        notes=(
            *(f"{stage} is not covered: {why}" for stage, why in left_out(target).items()),
            *dict.fromkeys(note for job in jobs for note in job.notes),
        ),
        conventions=departs,
    )
    return evaluate_ledger(symbolic, {k: dict(v) for k, v in values.items()}, target.info().symbols)


def job_nodes(exported: Exported, work: Costed) -> tuple[list[CostNode], tuple[UnknownOp, ...]]:
    """Nodes of one export, for each invocation that it describes; decode summed over the steps."""
    job = exported.job
    found = account(work, lambda module, call: (job.stage, job.invocations[0]))
    grown = cache_nodes(job.stage, job.invocations[0], exported.graph, exported.cache_inputs)
    nodes = merge_nodes((*found.nodes, *grown))
    if job.repeated:
        nodes = tuple(map(every_step, nodes))
    repeated = [replace(node, invocation=i) for i in job.invocations for node in nodes]
    return repeated, found.unknown


def convention_nodes(exported: Exported, values: Values) -> list[CostNode]:
    """Another tool's convention, for each invocation of one export: it rounds, so sizes are put in first."""
    job, nodes = exported.job, list[CostNode]()
    for invocation in job.invocations:
        here, known = (job.stage, invocation), values[job.stage, invocation]

        def at(sizes: Mapping[str, int], here: tuple[str, str] = here) -> tuple[CostNode, ...]:
            return fvcore_nodes(sized(exported.graph, sizes), lambda module, call: here)

        if not job.repeated:
            nodes += at(known)
            continue
        first, count = known[str(CONTEXT)], known[str(STEPS)]
        contexts = sorted({first, first + (count - 1) // 2, first + count - 1})
        nodes += over_steps([(c, at({**known, str(CONTEXT): c})) for c in contexts], count)[0]
    return nodes


def unknown_ops(exported: Exported, work: Costed, found: Sequence[UnknownOp], values: Values) -> list[UnknownOp]:
    """The unknown operators of one export in all its invocations, bounded at their sizes; steps at the last of them."""
    result: list[UnknownOp] = []
    for invocation in exported.job.invocations if found else ():
        known, runs = values[exported.job.stage, invocation], 1
        if exported.job.repeated:
            runs = known[str(STEPS)]
            known = {**known, str(CONTEXT): known[str(CONTEXT)] + runs - 1}
        result += bounded(found, work, known, runs)
    return result


def left_out(target: Target) -> Mapping[str, str]:
    """Stages that cannot be exported, with the reason."""
    return target.not_exported if isinstance(target, PartlyExported) else {}
