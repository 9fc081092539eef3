"""The static source: compute the costs of exported graphs in symbols, and evaluate them at the workload's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from costproof.algebra.series import CONTEXT, STEPS
from costproof.algebra.symbols import parse
from costproof.ledger.callgraph import OperatorLine, OperatorListing
from costproof.ledger.capture import FAILED, NOT_COVERED
from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.metrics import COMM, FLOOR, KEPT, SPARED, SPARED_AT_FLOOR
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload, sampled_steps
from costproof.models.specs import GIVEN, ExportJob, SymbolicSize
from costproof.models.target import Exportable, PartlyExported, Runnable, Staged, Target, WithFormulas, options_of
from costproof.opgraph.account import account, cache_nodes, settle_kept
from costproof.opgraph.costed import (
    CostedGraph,
    bound_unknown,
    cost_graph,
    failing_at_sizes,
    known_at_sizes,
    substitute_sizes,
)
from costproof.opgraph.fvcore_macs import fvcore_nodes
from costproof.opgraph.graph import Value
from costproof.opgraph.kept import FirstKnown
from costproof.opgraph.mask_bands import BandMasks
from costproof.opgraph.mask_rows import QueryRowMasks, with_lengths
from costproof.opgraph.merge import DecodeStep, NoClosedSum, merge_nodes, sum_all_steps, sum_traced_steps
from costproof.opgraph.reuse import PackedReads, reuse_bytes
from costproof.opgraph.rules.registry import UnknownCost
from costproof.opgraph.tally import LedgerBuilder, graph_metrics
from costproof.patches.flex_attention import values_wanted
from costproof.patches.patch import gc_disabled
from costproof.patches.sharding import PARTS
from costproof.snapshots.copies import unchecked
from costproof.tracers.cache import cached_export
from costproof.tracers.equal_layers import ledger_of_equal_layers
from costproof.tracers.exported import Exported
from costproof.tracers.exporting import with_numbers, with_sizes
from costproof.tracers.guards import first_broken_guard
from costproof.tracers.paths import Contents, Paths, mask_inputs
from costproof.tracers.storage import storage_by_layout
from costproof.tracers.unpacking import quantised_modules, with_formats

if TYPE_CHECKING:
    from torch import nn

InvocationValues = Mapping[tuple[str, str], Mapping[str, int]]
"""Values of the workload's symbols, by (stage, invocation)."""
_SPARED: Final = (SPARED, SPARED_AT_FLOOR)
WITH_ONES: Final = "with ones for numbers"
WITH_GIVEN: Final = f"with {GIVEN}"
"""Part of the note on an export in which tensor values decide a size or a branch."""


def static_ledger(target: Exportable, workload: Workload, progress: Progress = silent) -> Ledger:
    """Export every part of a model, compute the costs of the graphs, and return the static ledger.

    Nodes have ``exprs`` in the workload's symbols (B, S, n, P, N …; sizes of the configuration are numbers in a graph)
    and ``costs`` at the workload. Decode costs are the closed sum over N steps. A part that cannot be exported with
    symbolic sizes is exported at the workload's sizes; then its nodes have ``costs`` only. A stage with a part that
    cannot be exported at all is not covered. Notes report both.

    Raises:
        Incomplete: no stage can be exported.
    """
    progress("build the model", 0, 1)
    model = target.build(workload)
    covered = tuple(s for s in target.info().stages if s not in stages_not_exported(target))
    refused: dict[str, NoSymbols] = {}

    def count(one: Exportable, built: nn.Module) -> Ledger:
        values = {(i.stage, i.id): i.symbols for i in one.invocations(workload)}
        jobs, known = one.export_jobs(built, workload), None if one is target else refused
        return exported_ledger(one, workload, built, jobs, covered, values, progress, settled=False, refused=known)

    cut = None if workload.mesh.pp > 1 else ledger_of_equal_layers(target, workload, model, count)
    found = settle_kept(cut or count(target, model))
    return replace(found, sizes=input_sizes(target, model, workload))


def exported_ledger(
    target: Exportable,
    workload: Workload,
    model: nn.Module,
    jobs: Sequence[ExportJob],
    stages: Sequence[str],
    values: InvocationValues,
    progress: Progress = silent,
    export: Callable[[ExportJob], Exported] | None = None,
    *,
    whole: bool = False,
    settled: bool = True,
    refused: dict[str, NoSymbols] | None = None,
) -> Ledger:
    """Export some parts of a model, and return the static ledger of those exports that succeed.

    Args:
        jobs: the parts to export. Without symbolic sizes (:func:`.exporting.with_sizes`) the costs are integers only,
            which is three times as fast, and every decode step is an export of its own.
        stages: the stages that the jobs cover.
        values: values of the symbols, for every invocation of the jobs.
        whole: whether every export must succeed with the symbolic sizes that it asks for.
        settled: whether to apply :func:`~costproof.opgraph.account.settle_kept`, whose note names layers.
        refused: jobs that have no costs in symbols in a model with fewer layers, by id; those of this call are added.

    Raises:
        Incomplete: no stage can be exported; with ``whole``, a part cannot.
    """
    # If the exported graph differs from the run (in the kernel of experts), a convention over operators does not apply.
    departs = {key: value for job in jobs for key, value in job.conventions.items()}
    with_convention = options_of(target).convention is not None and not departs
    tally, notes, packed = LedgerBuilder(), list[str](), PackedReads()
    absent: dict[str, Incomplete] = {}
    for i, job in enumerate(jobs):
        progress(f"export {job.id}", i, len(jobs))
        try:
            with gc_disabled():
                one = cost_job(
                    job,
                    values,
                    export or cached_export,
                    with_convention=with_convention,
                    fixed=not whole,
                    dtype=workload.dtype,
                    packed=packed if job.packed else None,
                    refused=None if job.packed else refused,
                )
        except Incomplete as error:
            if whole:
                raise
            for stage in job.stages:
                absent.setdefault(stage, error)
            continue
        tally.merge(one.tally)
        notes += one.notes
    progress("export", len(jobs), len(jobs))
    stages = tuple(s for s in stages if s not in absent)
    if absent and not stages:
        raise next(iter(absent.values()))
    nodes = [n for n in tally.nodes if n.stage in stages]
    tally.store_parts({n: astuple(part) for n, part in vars(model).get(PARTS, {}).items()})
    storage = storage_by_layout(target, model, workload, tally.parameters, tally.buffers)
    owners = Paths(model).class_names()
    owned = tally.owned(lambda path: target.stages_of(path, workload), owners, storage.modules)
    symbolic = Ledger(
        source="static",
        nodes=merge_nodes((*nodes, *(n for n in owned if n.stage in stages))),
        metrics=(
            *graph_metrics(options_of(target) if with_convention else RunOptions(), storage.metrics),
            *(() if workload.mesh.one else COMM),
        ),
        stages=stages,
        unknown_ops=tally.missing(),
        notes=(
            *(f"{stage}{NOT_COVERED}{why}" for stage, why in stages_not_exported(target).items()),
            *(f"{stage}{NOT_COVERED}{FAILED}{why.line}" for stage, why in absent.items()),
            *dict.fromkeys(note for job in jobs for note in job.notes),
            *notes,
            *storage.notes,
        ),
        conventions=departs,
        attributes_bytes=max((job.attributes_bytes for job in jobs), default=0),
    )
    found = evaluate_ledger(symbolic, {k: dict(v) for k, v in values.items()}, target.info().symbols)
    found = replace(found, nodes=tuple(_floor_as_number(found.nodes, jobs)), bounds=True)
    found = settle_kept(found) if settled else found
    return with_formats(
        found, quantised_modules(target, model, workload, storage.saved), workload.dtype, in_symbols=whole
    )


def _floor_as_number(nodes: Iterable[CostNode], jobs: Iterable[ExportJob]) -> Iterator[CostNode]:
    """Yield the nodes; drop the formula of ``floor_bytes`` if only some parts of a stage have symbolic sizes."""
    sized: dict[str, set[bool]] = {}
    for job in jobs:
        for stage in job.stages:
            sized.setdefault(stage, set()).add(bool(job.sizes))
    for node in nodes:
        if FLOOR in node.exprs and len(sized[node.stage]) > 1:
            yield replace(node, exprs={m: e for m, e in node.exprs.items() if m != FLOOR})
        else:
            yield node


@dataclass(frozen=True, slots=True)
class JobCosts:
    """Cost nodes and unknown operators of one export job, with notes."""

    tally: LedgerBuilder
    notes: tuple[str, ...]


class NoSymbols(NamedTuple):
    """The reason why a decode step has no costs in symbols, and the notes of its export in symbols."""

    why: NoClosedSum
    notes: tuple[str, ...]


def cost_job(
    job: ExportJob,
    values: InvocationValues,
    export: Callable[[ExportJob], Exported],
    *,
    with_convention: bool,
    fixed: bool,
    dtype: str,
    packed: PackedReads | None = None,
    refused: dict[str, NoSymbols] | None = None,
) -> JobCosts:
    """Compute the costs of a job in symbols, or at each invocation's sizes if it cannot be exported with symbols.

    Args:
        with_convention: whether to count by another tool's convention too.
        fixed: whether an export without symbols is allowed.
        dtype: dtype of the run.
        packed: reads of earlier jobs of the same call.
        refused: jobs that are not exported in symbols again, by id, to which this job may be added. A model with more
            layers has the operators of one with fewer, so a cost without a closed sum there has none here.

    Raises:
        Incomplete: it cannot be exported at all.
    """
    tally, notes = LedgerBuilder(), dict[str, None]()

    def add(exported: Exported, context: int | None = None) -> None:
        contents, known = _contents(exported.job), values[job.stage, job.invocations[0]]
        work = cost_graph(exported.graph if exported.job.sizes else with_lengths(exported.graph, contents))
        if fixed and exported.job.sizes:
            if some := known_at_sizes(work, known, partial(with_lengths, given=contents)):
                raise Incomplete("operators have no cost formula in symbols, only numbers", got=", ".join(some))
            if failing := failing_at_sizes(work, known):
                raise Incomplete("an operator of the graph cannot run at the sizes of this workload", got=failing)
            if broken := first_broken_guard(
                exported, [p for i in job.invocations for p in job_points(job, values[job.stage, i])]
            ):
                raise Incomplete("at this workload the model takes another branch than its symbolic graph", got=broken)
        notes.update(dict.fromkeys(f"export {job.id}: {note}" for note in exported.notes))
        found, missing = job_nodes(exported, work, dtype, values, packed)
        if with_convention:
            found += convention_nodes(exported, values)
        tally.add(work, found, unknown_ops(exported, work, missing, values), context)
        tally.parameters |= exported.parameters
        tally.buffers |= exported.buffers

    def followed(one: ExportJob) -> Exported:
        """Export a job at constant sizes, on inputs with values if the model needs them."""
        held = _has_values(one)
        try:
            with values_wanted(held or (one.elsewhere and one.real is not None)) as read:
                return export(one)
        except Incomplete as error:
            if not (one.elsewhere or read.missed):
                raise
            refused = error
        try:
            with unchecked(made_up=one.real is None and not held):
                found = export(with_numbers(one))
        except Incomplete:
            if read.missed:  # then the pairs that a mask leaves stay unknown
                return export(one)
            raise refused from None
        if held:
            return replace(found, job=replace(found.job, numbers=False))
        which = WITH_ONES if one.real is None else WITH_GIVEN
        notes[f"export {job.id}: {which}, because: {refused.line}"] = None
        return found

    try:
        if fixed and job.sizes and refused and job.id in refused:
            notes.update(dict.fromkeys(refused[job.id].notes))
            raise refused[job.id].why.in_deeper_model()
        add(export(job) if job.sizes or not fixed else followed(job))
    except Incomplete as error:
        if not (fixed and job.sizes):
            raise
        if refused is not None and isinstance(error, NoClosedSum):
            refused.setdefault(job.id, NoSymbols(error, tuple(notes)))
        notes[f"export {job.id}: at the sizes of this workload alone, not in symbols: {error.line}"] = None
        for invocation in job.invocations:
            known = values[job.stage, invocation]
            at = replace(job, invocations=(invocation,))
            if not job.repeated:
                add(followed(with_sizes(at, known)))
                continue
            for context in step_contexts(known, job.chunk):
                add(followed(with_sizes(at, {**known, str(CONTEXT): context})), context)
            steps, bent = tally.summed(known[str(STEPS)])
            notes.update(dict.fromkeys(bent))
            tally.nodes, tally.steps = list(steps), []
    return JobCosts(tally, tuple(notes))


def _has_values(job: ExportJob) -> bool:
    """Return whether all arguments and parameters of a job have values."""
    from torch.utils._pytree import tree_leaves

    tensors = [*tree_leaves(dict(job.args)), *job.module.parameters()]
    return all(type(t).__name__ != "FakeTensor" and not getattr(t, "is_meta", True) for t in tensors)


def job_points(job: ExportJob, known: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the sizes at which an export must be valid: those of its only call, or those of every decode step."""
    if not job.repeated:
        return [dict(known)]
    return [{**known, str(CONTEXT): known[str(CONTEXT)] + i} for i in range(known[str(STEPS)])]


def step_contexts(known: Mapping[str, int], chunk: int = 0) -> list[int]:
    """Return the numbers of cached tokens before the sampled decode steps; see :func:`.workload.sampled_steps`."""
    first, count = known[str(CONTEXT)], known[str(STEPS)]
    return [first + i for i in sampled_steps(count, first, chunk)]


def job_nodes(
    exported: Exported, work: CostedGraph, dtype: str, values: InvocationValues, packed: PackedReads | None = None
) -> tuple[list[CostNode], tuple[UnknownOp, ...]]:
    """Return the nodes and unknown operators of an export for each invocation, with decode steps summed."""
    job = exported.job
    bands = BandMasks(work.graph, job.masks, map(parse, job.holds), job.known.keys())
    # Without symbols, masks are also counted in numbers.
    rows = () if job.sizes else (QueryRowMasks(work.graph, _contents(job)),)
    found = account(work, job.place, job.inside, dtype, FirstKnown((bands, *rows)), packed)
    grown = cache_nodes(job.place, exported.graph, exported.cache_inputs)
    nodes = merge_nodes((*found.nodes, *grown))
    if job.repeated:
        nodes = tuple(map(sum_all_steps, nodes))
    repeated = [replace(node, invocation=i) for i in job.invocations for node in nodes]
    if job.sizes and any(None in node.costs.values() for node in nodes):
        repeated = _with_kept_numbers(repeated, exported, dtype, values)
    return repeated, found.unknown


def _contents(job: ExportJob) -> Contents:
    """Return the contents of masks and lengths among a job's arguments that have values or declared contents."""
    given = {} if job.numbers and job.real is None else job.args
    return mask_inputs(given, job.masks, known=job.known)


def _with_kept_numbers(
    nodes: list[CostNode], exported: Exported, dtype: str, values: InvocationValues
) -> list[CostNode]:
    """Count metrics that depend on masks at each call's sizes, if they have no formula; return the nodes.

    This concerns kept scores, and the bytes that a run can spare, since an unknown mask may hide keys.
    """
    job, found = exported.job, dict[str, CostNode]()
    for invocation in job.invocations:
        known = values[job.stage, invocation]

        def at(sizes: Mapping[str, int], invocation: str = invocation) -> tuple[CostNode, ...]:
            work = cost_graph(substitute_sizes(exported.graph, sizes))
            pairs = QueryRowMasks(work.graph, mask_inputs(job.args, job.masks, known=job.known))
            counted = account(work, job.place, job.inside, dtype, pairs)
            return tuple(
                replace(
                    n, invocation=invocation, costs={m: n.costs[m] for m in (*KEPT, *_SPARED) if m in n.costs}, exprs={}
                )
                for n in counted.nodes
            )

        if job.repeated:
            steps = [DecodeStep(c, at({**known, str(CONTEXT): c})) for c in step_contexts(known, job.chunk)]
            counted: Iterable[CostNode] = sum_traced_steps(steps, known[str(STEPS)])[0]
        else:
            counted = at(known)
        found |= {node.id: node for node in counted}

    def in_numbers(node: CostNode) -> CostNode:
        own = found.get(node.id)
        if own is None:
            return node
        costs = {m: own.cost(m) if m in KEPT and c is None else c for m, c in node.costs.items() if m not in _SPARED}
        spared = {m: c for m, c in own.costs.items() if m in _SPARED}
        return replace(node, costs=costs | spared, exprs={m: e for m, e in node.exprs.items() if m not in _SPARED})

    return [in_numbers(node) for node in nodes]


def convention_nodes(exported: Exported, values: InvocationValues) -> list[CostNode]:
    """Return nodes by another tool's counting convention, which rounds and so needs concrete sizes."""
    job, nodes = exported.job, list[CostNode]()
    for invocation in job.invocations:
        known = values[job.stage, invocation]

        def at(sizes: Mapping[str, int], invocation: str = invocation) -> tuple[CostNode, ...]:
            return fvcore_nodes(
                substitute_sizes(exported.graph, sizes), lambda module, call: (job.place(module, call)[0], invocation)
            )

        if not job.repeated:
            nodes += at(known)
            continue
        steps = [DecodeStep(c, at({**known, str(CONTEXT): c})) for c in step_contexts(known)]
        nodes += sum_traced_steps(steps, known[str(STEPS)])[0]
    return nodes


def unknown_ops(
    exported: Exported, work: CostedGraph, found: Sequence[UnknownOp], values: InvocationValues
) -> list[UnknownOp]:
    """Return the operators without a rule in all invocations, each with an upper bound of its cost."""
    result: list[UnknownOp] = []
    for invocation in exported.job.invocations if found else ():
        known, runs = values[exported.job.stage, invocation], 1
        if exported.job.repeated:
            runs = known[str(STEPS)]
            known = {**known, str(CONTEXT): known[str(CONTEXT)] + runs - 1}
        result += bound_unknown(found, work, known, runs)
    return result


def stages_not_exported(target: Target) -> Mapping[str, str]:
    """Return the stages that cannot be exported, with the reasons."""
    return target.not_exported if isinstance(target, PartlyExported) else {}


_PAST, _STEPS = str(CONTEXT), str(STEPS)
_ROOT: Final = ("", 1)
"""The first call of the model's root module."""

_InputCall = tuple[tuple[str, str], Mapping[str, Any], Sequence[SymbolicSize], int | None]
"""A call for which input sizes are read: (stage, invocation), arguments, symbolic dimensions, and tokens in the cache
before a decode step.
"""


def input_sizes(target: Exportable, model: nn.Module, workload: Workload) -> dict[str, dict[str, int]]:
    """Read each call's sizes from the shapes of its example inputs; return them by ``stage[invocation]`` and symbol.

    They are a second source of sizes. Formulas and symbolic graphs are both evaluated at the sizes that the target
    reports for its calls, so a wrong size shows in no difference between them. The inputs of a stage, when it runs
    alone or in a run, are made from the workload by other code, and their shapes contain the sizes again.

    Empty if a target cannot make inputs without values.

    Args:
        model: on the meta device; nothing is run.
    """
    try:
        calls = list(_calls(target, model, workload))
    except RuntimeError:  # the inputs depend on values, which meta lacks
        return {}
    found: dict[str, dict[str, int]] = {}
    contexts: dict[str, list[int]] = {}
    for (stage, invocation), args, sizes, context in calls:
        call = f"{stage}[{invocation}]"
        here = found.setdefault(call, {})
        for size in sizes:
            shape = _shape(args, size.argument)
            if size.symbol.isidentifier() and size.symbol != _PAST and shape is not None:
                here[size.symbol] = shape[size.dim]
        if context is not None:
            contexts.setdefault(call, []).append(context)
    for call, before in contexts.items():
        found[call] |= {_PAST: min(before), _STEPS: max(before) - min(before) + 1}
    return {call: sizes for call, sizes in found.items() if sizes}


def _calls(target: Exportable, model: nn.Module, workload: Workload) -> Iterator[_InputCall]:
    described: object = target
    if not isinstance(described, WithFormulas):
        return
    exports = target.export_jobs(model, workload)
    if isinstance(target, Staged):
        sizes = {job.stage: job.sizes for job in exports if job.sizes}
        for job in target.stage_runs(model, workload):
            for invocation in job.invocations:
                yield (job.stage, invocation), job.args, job.sizes or sizes.get(job.stage, ()), job.context
    elif isinstance(target, Runnable):
        for run in target.runs(model, workload):
            yield run.locate(*_ROOT), run.kwargs, (), run.context
            if run.context is None:  # its arguments are those of all exported parts
                yield from (((job.stage, job.invocations[0]), run.kwargs, job.sizes, None) for job in exports)


def _shape(args: Mapping[str, Any], path: tuple[str | int, ...]) -> tuple[int, ...] | None:
    """Return the shape of the argument at a path; ``None`` if there is no argument."""
    value: Any = args
    for step in path:
        inside = step in value if isinstance(value, Mapping) else isinstance(step, int) and step < len(value)
        if not inside:
            return None
        value = value[step]
    return tuple(value.shape) if hasattr(value, "shape") else None


_IDLE: Final = ("alias", "factory", "free")
"""Roles of operators that do no work."""


def listings(target: Exportable, workload: Workload, stage: str) -> Iterator[OperatorListing]:
    """Yield a listing of all operators with their costs, for every export of a stage at each call's sizes.

    Raises:
        Incomplete: a part cannot be exported.
    """
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    for job in target.export_jobs(target.build(workload), workload):
        for invocation in job.invocations if stage in job.stages else ():
            one = with_sizes(replace(job, invocations=(invocation,)), values[stage, invocation])
            exported = cached_export(one)
            work = cost_graph(exported.graph)
            yield OperatorListing(
                stage,
                invocation,
                job.id,
                tuple(_lines(work, job, stage)),
                reuse_bytes(work, exported.cache_inputs),
            )


def _lines(work: CostedGraph, job: ExportJob, stage: str) -> Iterator[OperatorLine]:
    moved = work.alone
    for at, (op, cost) in enumerate(zip(work.graph.ops, work.costs, strict=True)):
        if job.place(op.module, op.call)[0] != stage:
            continue
        known = (None, None, cost.why) if isinstance(cost, UnknownCost) else (int(cost.flops), int(cost.vector), "")
        flops, vector, why = known
        yield OperatorLine(
            label=op.label,
            operator=op.name,
            module=op.module,
            reads=tuple(map(_name, op.tensors)),
            returns=tuple(f"[{', '.join(map(str, v.shape))}] {v.dtype}" for v in op.outputs),
            flops=flops,
            vector_flops=vector,
            why=why,
            makes=tuple(map(_name, op.outputs)),
            works=isinstance(cost, UnknownCost) or cost.role not in _IDLE,
            bytes=int(moved[at].bytes) if at in moved else 0,
        )


def _name(value: Value) -> str:
    """Return the name of a parameter or buffer, or ``%id`` for any other tensor."""
    return value.name if value.origin in ("param", "buffer") and value.name else f"%{value.id}"
