"""The dynamic source: costs from traces of the running model, checked by a second tracer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.capture import TraceCheck
from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import TRAFFIC, UNFUSED
from costproof.ledger.node import CostNode, Ledger, UnknownOp, total
from costproof.ledger.profile import Measured
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import Convention, RunRecord, TracedRun
from costproof.ledger.workload import Workload
from costproof.models.generic.alike import held_bytes
from costproof.models.jobs import Run
from costproof.models.serving import options_of
from costproof.models.target import Exportable, Runnable, Target, WithFormulas
from costproof.opgraph.account import account, cache_growth_nodes, locator
from costproof.opgraph.costed import CostedGraph, cost_graph
from costproof.opgraph.dataflow import data_edges
from costproof.opgraph.fvcore_macs import fvcore_nodes
from costproof.opgraph.merge import Groups, group_costs, group_parameters, merge_nodes
from costproof.opgraph.tally import LedgerBuilder, graph_metrics, read_parameters, unread_modules, with_owners
from costproof.patches.patch import gc_disabled
from costproof.patches.torchlens import wrapped_once
from costproof.tracers.callgraph import call_graph
from costproof.tracers.cpu_fallback import trace_run
from costproof.tracers.flop_counter_ledger import Flops, judged_ledger
from costproof.tracers.hooks import ROOT, Hooked
from costproof.tracers.operands import dtype_name
from costproof.tracers.paths import Paths
from costproof.tracers.timing import profile_runs
from costproof.tracers.torchlens_trace import Forward, lost_tensors

if TYPE_CHECKING:
    import torch

UNUSED: Final = "no operator reads a parameter of "
"""Begins a note on modules that the inputs leave unused."""
NUMPY: Final = "numpy"
GONE: Final = "the numbers of a tensor went to NumPy, and nothing sees what is computed there"
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class DynamicResult:
    """What the running model says."""

    ledger: Ledger
    callgraph: CallGraph
    trace_check: TraceCheck
    judge: Ledger
    """FLOPs of the same runs by the second judge."""
    run: RunRecord
    forwards: dict[str, tuple[CostNode, ...]]
    """Run -> what that forward alone costs."""
    by_values: bool = False
    """Whether values of tensors decided a size or a branch of a run."""
    measured: Measured | None = None
    """Times, if the options ask for them."""
    chrome_trace: str = ""


def dynamic_ledger(
    target: Runnable, workload: Workload, progress: Progress = silent, *, all_calls: bool = False
) -> DynamicResult:
    """Trace the prefill and decode steps of the whole model on meta and cost what ran.

    Of many decode steps the first, one in the middle and the last are traced. Costs per step must
    lie on the straight line through first and last; then the sum over all N is N (first + last) / 2.

    Args:
        all_calls: the callgraph tells what went in and out of every call, not of the first alone.

    Raises:
        Incomplete: the model cannot be traced.
    """
    progress("build the model", 0, 1)
    built = target.build_run(workload, progress)
    model = built.model
    runs = target.runs(model, workload)
    operators: dict[str, Counter[str]] = {}
    feeds: Counter[tuple[str, str]] = Counter()
    hooked: list[Hooked] = []
    differences: list[str] = []
    notes: list[str] = list(built.notes)
    records: list[TracedRun] = []
    forwards: dict[str, tuple[CostNode, ...]] = {}
    tally = LedgerBuilder()
    modules, edges = set(), set()
    judged: list[tuple[int | None, Flops]] = []
    alone: list[UnknownOp] = []
    read: set[str] = set()
    with wrapped_once():
        for i, run in enumerate(runs):
            progress(f"trace {run.id}", i, len(runs))
            with gc_disabled():
                with returned(run) as results, run.around():
                    found = trace_run(run, all_calls=all_calls)
                traced, hooks = found.forward, found.hooks
                work = cost_graph(traced.graph)
                nodes, missing = run_nodes(traced, work, hooks, workload.dtype, target.options.convention)
                tally.add(work, nodes, missing, run.context)
            judged.append((run.context, hooks.judged.placed(hooks.run)))
            alone += hooks.judged.without_formula(hooks.run)
            records.append(record(run, traced, nodes, hooks.judged.of_experts(hooks.run)))
            forwards[run.id] = (*nodes, *_unknown_nodes(nodes, missing))
            differences += changed(run, results)
            feeds += data_edges(work)
            read |= read_parameters(traced.graph)
            notes += (*found.notes, *(f"run {run.id}: {p}" for p in (*traced.problems, *traced.notes)))
            hooked.append(hooks)
            seen_modules, seen_edges, differing = check(traced, hooks)
            modules |= seen_modules
            edges |= seen_edges
            differences += differing
            for op in traced.graph.ops:
                operators.setdefault(op.module or ROOT, Counter())[op.name] += 1
    progress("trace", len(runs), len(runs))
    nodes, bent = tally.summed(workload.new_tokens)
    notes += bent
    if 2 < len(tally.steps) < workload.new_tokens:
        traced_at = ", ".join(str(step.context) for step in tally.steps)
        notes.append(f"decode: traced at contexts {traced_at}; the other steps lie on the same straight line")
    paths = Paths(model)
    owners = paths.class_names()
    tally.parameters |= {n: (tuple(p.shape), dtype_name(p.dtype)) for n, p in paths.parameters.items()}
    tally.buffers |= held_bytes(paths.buffers)
    if any(run.elsewhere for run in runs):  # its inputs may be guesses
        notes += unused(unread_modules(paths.parameters, read))

    def works_in(path: str) -> Iterable[str]:
        if isinstance(target, Exportable):
            return target.stages_of(path, workload)
        return dict.fromkeys(run.locate(path, 1)[0] for run in runs)

    owned = tally.owned(works_in, owners)
    ledger = Ledger(
        source="dynamic",
        nodes=with_owners((*nodes, *group_parameters(owned, groups_of(runs[0]), runs[0].positions)), owners),
        metrics=graph_metrics(target.options),
        stages=target.info().stages,
        unknown_ops=tally.missing(),
        notes=tuple(notes),
        bounds=True,
    )
    if stray := {n.stage for n in ledger.nodes} - set(ledger.stages):
        raise Incomplete(
            "the stages do not sum to the run: some of its work is in none of them",
            where=", ".join(sorted(stray)),
            expected=", ".join(ledger.stages),
        )
    return DynamicResult(
        unfused_where_told(ledger, target, workload, grouped=any(run.groups for run in runs)),
        call_graph(hooked, operators, feeds, all_calls=all_calls),
        TraceCheck(len(modules), len(edges), tuple(differences)),
        judged_ledger(judged, workload.new_tokens, target.info().stages, alone),
        RunRecord(target.options.public(), built.notes, tuple(records)),
        forwards,
        any(hooks.judged.by_values for hooks in hooked),
        *(profile_runs(runs, target.options.profile, progress) if target.options.profile else ()),
    )


def unused(modules: Sequence[str]) -> tuple[str, ...]:
    """What a run with these inputs left out, in words; nothing if it was nothing."""
    more = f" and {len(modules) - _SHOWN} more" if len(modules) > _SHOWN else ""
    return (f"{UNUSED}{', '.join(modules[:_SHOWN])}{more}",) if modules else ()


def record(run: Run, traced: Forward, nodes: Sequence[CostNode], experts: Mapping[str, tuple[int, ...]]) -> TracedRun:
    """One traced forward, counted apart."""
    return TracedRun(
        run.id, run.context, len(traced.graph.ops), len(traced.graph.calls),
        total(nodes, "flops"), total(nodes, "vector_flops"), total(nodes, "kv_cache_bytes"),
        dict(run.expert_tokens), dict(experts),
    )  # fmt: skip


def groups_of(run: Run) -> Groups:
    """Modules that are counted together, and the rows that each of them received."""
    return {group: run.expert_tokens[group] for group in run.groups}


def run_nodes(
    traced: Forward, work: CostedGraph, hooks: Hooked, dtype: str, convention: Convention | None = None
) -> tuple[tuple[CostNode, ...], tuple[UnknownOp, ...]]:
    """Nodes of one traced run; the growth of the cache comes from the hooks."""
    run, place = hooks.run, locator(hooks.run.locate, traced.graph.calls)
    found = account(work, place, run_dtype=dtype)
    beside = fvcore_nodes(traced.graph, place) if convention else ()
    grown = [
        node
        for path, size in ((p.removeprefix(ROOT), size) for p, size in hooks.cache_growth.items())
        for node in cache_growth_nodes(*run.locate(path, 1), path, size)
    ]
    lost = lost_tensors(traced.problems, run.locate("", 1)[0])
    gone = (UnknownOp(NUMPY, *at, times, None, GONE) for at, times in hooks.judged.gone(run).items())
    return group_costs(merge_nodes((*found.nodes, *grown, *beside)), groups_of(run)), (*found.unknown, *lost, *gone)


def _unknown_nodes(nodes: Iterable[CostNode], missing: Iterable[UnknownOp]) -> Iterator[CostNode]:
    """Yield a node of unknown costs for each operator without a rule, in every invocation of its stage."""
    calls = dict.fromkeys((n.stage, n.invocation) for n in nodes if n.invocation)
    for op in missing:
        for stage, invocation in calls:
            if stage == op.stage:
                yield CostNode(stage, invocation, op.module, op.op, dict.fromkeys(("flops", *TRAFFIC)))


def check(traced: Forward, hooks: Hooked) -> tuple[set[str], set[tuple[str, str]], list[str]]:
    """Modules and edges that either tracer saw in a run, and where the two disagree."""
    calls = Counter(c.module or ROOT for c in traced.graph.calls)
    edges = Counter((c.parent[0] or ROOT, c.module) for c in traced.graph.calls if c.parent is not None)
    # A call that returns no tensor, of an Identity on nothing or of checks of sizes, leaves no record with TorchLens.
    bare = {path for path in hooks.call_counts.keys() - calls.keys() if not hooks.returns_tensors(path)}
    modules = calls.keys() | hooks.call_counts.keys() - bare
    pairs = edges.keys() | {edge for edge in hooks.edges if edge[1] not in bare}
    seen = [(f"{name} called", calls[name], hooks.call_counts.get(name, 0)) for name in sorted(modules)]
    seen += [(f"{a}->{b}", edges[a, b], hooks.edges.get((a, b), 0)) for a, b in sorted(pairs)]
    differences = [
        f"run {hooks.run.id}: {what} {one} times by TorchLens, {other} by hooks"
        for what, one, other in seen
        if one != other
    ]
    return modules, pairs, differences


@contextmanager
def returned(run: Run) -> Iterator[list[Any]]:
    """Collect what the model returns while it is open; nothing for runs without numbers."""
    results: list[Any] = []
    with ExitStack() as undo:
        if run.expected is not None:
            keep = run.model.register_forward_hook(lambda module, args, output: results.append(_first(output)))
            undo.callback(keep.remove)
        yield results


def _first(output: Any) -> torch.Tensor:
    """The logits of a forward, or whatever a model without a head returns first."""
    found: torch.Tensor = output.logits if hasattr(output, "logits") else output[0]
    return found


def changed(run: Run, results: list[torch.Tensor]) -> list[str]:
    """One sentence per traced forward that returned other bits than the untraced one."""
    import torch

    return [
        f"run {run.id}: traced forward {number} returned other logits than the untraced one"
        for number, result in enumerate(results, start=1)
        if run.expected is not None and not torch.equal(_bits(result), _bits(run.expected))
    ]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits as integers, since a NaN does not equal itself."""
    import torch

    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def unfused_where_told(ledger: Ledger, target: Target, workload: Workload, *, grouped: bool = False) -> Ledger:
    """The ledger of a run; without :data:`~costproof.ledger.metrics.UNFUSED` where its operators may be others.

    Which experts run is data, and so is what the operators of their loop move; a device chooses operators too; and a
    call that a run has as one operator may be several of an export, or none: formulas say which ones there are.

    Args:
        grouped: experts are counted together (``Run.groups``). Then formulas are of that very loop, and of code that
            asks for no device.
    """
    chosen = workload.experts == "eager" or options_of(target).device != "meta"
    told = isinstance(target, WithFormulas) and (grouped or not chosen)
    return ledger if told else ledger.without((UNFUSED,))
