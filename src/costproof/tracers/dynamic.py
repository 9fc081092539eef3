"""The dynamic source: compute costs from traces of the running model, checked by a second tracer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import astuple, dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.capture import TraceCheck
from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import COMM, TRAFFIC, UNFUSED
from costproof.ledger.node import CostNode, Ledger, UnknownOp, total
from costproof.ledger.profile import Measured
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import Convention, RunRecord, TracedRun
from costproof.ledger.workload import Workload, sampled_steps
from costproof.models.specs import Built, Run
from costproof.models.target import Exportable, Runnable, Target, WithFormulas, options_of
from costproof.opgraph.account import account, cache_growth_nodes, locator, settle_kept
from costproof.opgraph.costed import CostedGraph, cost_graph, data_edges
from costproof.opgraph.fvcore_macs import fvcore_nodes
from costproof.opgraph.kept import PairCounter
from costproof.opgraph.mask_rows import QueryRowMasks, with_lengths
from costproof.opgraph.merge import Groups, group_costs, group_parameters, merge_nodes
from costproof.opgraph.reuse import PackedReads
from costproof.opgraph.tally import LedgerBuilder, graph_metrics, read_parameters, unread_modules, with_owners
from costproof.patches.patch import gc_disabled
from costproof.patches.sharding import PARTS
from costproof.patches.torchlens import wrapped_once
from costproof.tracers.callgraph import call_graph
from costproof.tracers.cpu_fallback import trace_run
from costproof.tracers.flop_counter_ledger import Counts, flop_counter_ledger
from costproof.tracers.hooks import ROOT, Hooked
from costproof.tracers.paths import Paths, dtype_name, mask_inputs
from costproof.tracers.storage import resident_bytes, storage_of_run
from costproof.tracers.timing import profile_runs, timed_device
from costproof.tracers.torchlens_trace import TracedForward, lost_tensors
from costproof.tracers.unpacking import quantised_modules, with_formats

if TYPE_CHECKING:
    import torch

BuiltRuns = tuple[Built, tuple[Run, ...]]
"""A built model, and its forwards."""
UNREAD: Final = "kept scores are not compared where an error ended the reading of a mask, in"
UNUSED: Final = "no operator reads a parameter of "
"""Prefix of the note on modules whose parameters no operator reads."""
NUMPY: Final = "numpy"
GONE: Final = "the numbers of a tensor went to NumPy, and nothing sees what is computed there"
_REPEATED: Final = {"cpu": 4, "cuda": 32}
"""Maximum number of untraced forwards to compare where a traced forward returned other logits, by device.

Atomic additions on a GPU may agree several times.
"""
_ENOUGH: Final = 10.0
"""Seconds of repeated forwards on a CPU after which the comparison stops."""
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class DynamicResult:
    """The dynamic ledger of a target, and all other results of its traced runs."""

    ledger: Ledger
    callgraph: CallGraph
    trace_check: TraceCheck
    judge: Ledger
    """FLOPs of the same runs by the formulas of torch's ``FlopCounterMode``."""
    run: RunRecord
    forwards: dict[str, tuple[CostNode, ...]]
    """Cost nodes of each single run, by run."""
    by_values: bool = False
    """Whether tensor values decided a size or a branch of a run."""
    measured: Measured | None = None
    """Measured times; ``None`` without ``--profile``."""
    chrome_trace: str = ""


@dataclass(slots=True)
class _TracedRuns:
    """Sums over the runs traced so far."""

    convention: Convention | None
    dtype: str
    notes: list[str]
    tally: LedgerBuilder = field(default_factory=LedgerBuilder)
    packed: PackedReads = field(default_factory=PackedReads)
    """Reads of runs that are parts of one packed call."""
    operators: dict[str, Counter[str]] = field(default_factory=dict)
    """Number of calls, by path of the innermost module and by operator."""
    feeds: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a result of module a entered module b, by (a, b)."""
    hooks: list[Hooked] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    """Differences between TorchLens and the hooks, and between bits of traced and untraced outputs, as sentences."""
    records: list[TracedRun] = field(default_factory=list)
    forwards: dict[str, tuple[CostNode, ...]] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    edges: set[tuple[str, str]] = field(default_factory=set)
    judged: list[tuple[int | None, Counts]] = field(default_factory=list)
    without_formula: list[UnknownOp] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    """Names of the parameters that an operator reads."""

    def add(self, run: Run, *, all_calls: bool) -> None:
        """Trace a run, compute the costs of its operators, and add the results to the sums."""
        with gc_disabled():
            with record_output(run) as results, run.around():
                found = trace_run(run, all_calls=all_calls)
            traced, hooks = found.forward, found.hooks
            # Of another run, on which a trace fell back, numbers may be made up.
            contents = mask_inputs(run.kwargs, run.masks, "input.", run.known)
            work = cost_graph(with_lengths(traced.graph, contents))
            pairs = QueryRowMasks(work.graph, contents)
            nodes, missing = self._cost(traced, work, hooks, pairs)
            self.tally.add(work, nodes, missing, run.context)
        self.hooks.append(hooks)
        flops: Counts = {(*k, "flops"): n for k, n in hooks.judged.placed(hooks.run).items()}
        self.judged.append((run.context, flops | hooks.judged.placed_pairs(hooks.run)))
        self.without_formula += hooks.judged.without_formula(hooks.run)
        self.records.append(
            TracedRun(
                run.id, run.context, len(traced.graph.ops), len(traced.graph.calls),
                total(nodes, "flops"), total(nodes, "vector_flops"), total(nodes, "kv_cache_bytes"),
                dict(run.expert_tokens), hooks.judged.of_experts(hooks.run),
            )
        )  # fmt: skip
        self.forwards[run.id] = (*nodes, *_unknown_nodes(nodes, missing))
        self.feeds += data_edges(work)
        self.read |= read_parameters(traced.graph)
        unread = (f"{UNREAD} {name}: {why}" for name, why in hooks.judged.unread.items())
        self.notes += (*found.notes, *(f"run {run.id}: {p}" for p in (*traced.problems, *traced.notes, *unread)))
        modules, edges, differing = compare_tracers(traced, hooks)
        self.modules |= modules
        self.edges |= edges
        other = output_differences(run, results)
        if other and not repeats(run):
            self.notes.append(f"run {run.id}: logits are not compared, since two untraced runs differ as well")
            other = []
        self.differences += (*other, *differing)
        for op in traced.graph.ops:
            self.operators.setdefault(op.module or ROOT, Counter())[op.name] += 1

    def _cost(
        self, traced: TracedForward, work: CostedGraph, hooks: Hooked, pairs: PairCounter
    ) -> tuple[tuple[CostNode, ...], tuple[UnknownOp, ...]]:
        """Return the cost nodes of a traced run, and its operators without a known cost.

        The bytes by which the cache grows come from the hooks, since the trace does not show them.
        """
        run, place = hooks.run, locator(hooks.run.locate, traced.graph.calls)
        found = account(
            work, place, run_dtype=self.dtype, pairs=pairs, packed=self.packed if run.packed else None
        )  # fmt: skip
        others = fvcore_nodes(traced.graph, place) if self.convention else ()
        grown = [
            node
            for path, size in ((p.removeprefix(ROOT), size) for p, size in hooks.cache_growth.items())
            for node in cache_growth_nodes(*run.locate(path, 1), path, size)
        ]
        lost = lost_tensors(traced.problems, run.locate("", 1)[0])
        to_numpy = (UnknownOp(NUMPY, *at, times, None, GONE) for at, times in hooks.judged.gone(run).items())
        nodes = group_costs(merge_nodes((*found.nodes, *grown, *others)), _groups(run))
        return nodes, (*found.unknown, *lost, *to_numpy)


def build_runs(target: Runnable, workload: Workload, progress: Progress = silent) -> BuiltRuns:
    """Build the model of a target and its forwards, ready to run.

    Raises:
        Problems: the checkpoint does not fit the model.
        BadInput: there is no checkpoint, or the installed packages cannot run the model's code.
        Incomplete: the device is not available.
    """
    progress("build the model", 0, 1)
    built = target.build_run(workload, progress)
    return built, target.runs(built.model, workload)


def dynamic_ledger(
    target: Runnable,
    workload: Workload,
    progress: Progress = silent,
    *,
    all_calls: bool = False,
    ready: BuiltRuns | None = None,
) -> DynamicResult:
    """Trace the prefill and decode steps of the whole model on meta, and compute the costs of the operators that ran.

    Of many decode steps the first, one in the middle and the last are traced. Costs per step must
    lie on the straight line through first and last; then the sum over all N is N (first + last) / 2.

    Args:
        all_calls: record the inputs and outputs of every call in the callgraph, not only of each module's first.
        ready: the model and its forwards, if the caller needs them too (default: they are built).

    Raises:
        Incomplete: the model cannot be traced.
    """
    built, runs = build_runs(target, workload, progress) if ready is None else ready
    traced = _TracedRuns(target.options.convention, workload.dtype, list(built.notes))
    with nullcontext() if all(run.dispatched for run in runs) else wrapped_once():
        for i, run in enumerate(runs):
            progress(f"trace {run.id}", i, len(runs))
            traced.add(run, all_calls=all_calls)
    progress("trace", len(runs), len(runs))
    tally, notes, paths = traced.tally, traced.notes, Paths(built.model)
    nodes, not_straight = tally.summed(workload.new_tokens)
    notes += not_straight
    if 2 < len(tally.steps) < workload.new_tokens:
        traced_at = ", ".join(str(step.context) for step in tally.steps)
        line = (
            "the same straight line"
            if len(tally.steps) == len(sampled_steps(workload.new_tokens))
            else "straight lines"
        )
        notes.append(f"decode: traced at contexts {traced_at}; the other steps lie on {line}")
    owners = paths.class_names()
    tally.parameters |= {n: (tuple(p.shape), dtype_name(p.dtype)) for n, p in paths.parameters.items()}
    # As the tensors state them; exports multiply shapes and item sizes.
    tally.sizes |= {n: (p.numel(), p.numel() * p.element_size()) for n, p in paths.parameters.items()}
    tally.store_parts({n: astuple(part) for n, part in vars(built.model).get(PARTS, {}).items()})
    tally.buffers |= resident_bytes(paths.buffers)
    if any(run.elsewhere for run in runs):  # its inputs may be guesses
        unread = unread_modules(paths.parameters, traced.read)
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        notes += [f"{UNUSED}{', '.join(unread[:_MOST_NAMED])}{more}"] if unread else []

    def stages_of(path: str) -> Iterable[str]:
        if isinstance(target, Exportable):
            return target.stages_of(path, workload)
        return dict.fromkeys(run.locate(path, 1)[0] for run in runs)

    storage = storage_of_run(target, built.model, workload)
    owned = tally.owned(stages_of, owners, storage.modules)
    ledger = Ledger(
        source="dynamic",
        nodes=with_owners((*nodes, *group_parameters(owned, _groups(runs[0]), runs[0].positions)), owners),
        metrics=(*graph_metrics(target.options, storage.metrics), *(() if workload.mesh.one else COMM)),
        stages=target.info().stages,
        unknown_ops=tally.missing(),
        notes=(*notes, *storage.notes),
        attributes_bytes=built.attributes_bytes,
        bounds=True,
        differences=storage.differences,
    )
    ledger = with_formats(ledger, quantised_modules(target, built.model, workload, storage.saved), workload.dtype)
    if stray := {n.stage for n in ledger.nodes} - set(ledger.stages):
        raise Incomplete(
            "the run has work in a stage that the target does not list",
            where=", ".join(sorted(stray)),
            expected=", ".join(ledger.stages),
        )
    return DynamicResult(
        without_unfused_if_chosen(settle_kept(ledger), target, workload, grouped=any(run.groups for run in runs)),
        call_graph(traced.hooks, traced.operators, traced.feeds, all_calls=all_calls),
        TraceCheck(len(traced.modules), len(traced.edges), tuple(traced.differences)),
        flop_counter_ledger(traced.judged, workload.new_tokens, target.info().stages, traced.without_formula),
        RunRecord(target.options.public(), built.notes, tuple(traced.records)),
        traced.forwards,
        any(hooks.judged.by_values for hooks in traced.hooks),
        *(profile_runs(runs, target.options.profile, progress) if target.options.profile else ()),
    )


def _groups(run: Run) -> Groups:
    """Return the number of rows that each expert received, by group of modules that are counted together."""
    return {group: run.expert_tokens[group] for group in run.groups}


def _unknown_nodes(nodes: Iterable[CostNode], missing: Iterable[UnknownOp]) -> Iterator[CostNode]:
    """Yield a node with unknown costs for each operator without a rule, in every invocation of its stage."""
    calls = dict.fromkeys((n.stage, n.invocation) for n in nodes if n.invocation)
    for op in missing:
        for stage, invocation in calls:
            if stage == op.stage:
                yield CostNode(stage, invocation, op.module, op.op, dict.fromkeys(("flops", *TRAFFIC)))


def compare_tracers(traced: TracedForward, hooks: Hooked) -> tuple[set[str], set[tuple[str, str]], list[str]]:
    """Return the modules and call edges seen in a run, and each disagreement between TorchLens and the hooks."""
    calls = Counter(c.module or ROOT for c in traced.graph.calls)
    edges = Counter((c.parent[0] or ROOT, c.module) for c in traced.graph.calls if c.parent is not None)
    # TorchLens has no record of a call that returns no tensor, such as an Identity of None or a check of sizes.
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
def record_output(run: Run) -> Iterator[list[Any]]:
    """Collect the first output of each forward while the block runs, if the untraced run's output is known."""
    results: list[Any] = []
    with ExitStack() as undo:
        if run.expected is not None:
            hook = run.model.register_forward_hook(lambda module, args, output: results.append(_logits(output)))
            undo.callback(hook.remove)
        yield results


def _logits(output: Any) -> torch.Tensor:
    """Return the logits in a forward's output, or the first output of a model without a head."""
    logits: torch.Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits


def output_differences(run: Run, results: list[torch.Tensor]) -> list[str]:
    """Return a sentence for each traced forward whose output differs in any bit from the untraced forward's."""
    import torch

    return [
        f"run {run.id}: traced forward {number} returned other logits than the untraced one"
        for number, result in enumerate(results, start=1)
        if run.expected is not None and not torch.equal(_bits(result), _bits(run.expected))
    ]


def repeats(run: Run) -> bool:
    """Return whether untraced forwards return equal bits; with atomic additions on a GPU they may not."""
    import torch

    first, began = None, monotonic()
    for i in range(_REPEATED[timed_device(run.model)]):
        if i >= _REPEATED["cpu"] and monotonic() - began > _ENOUGH:
            break
        with torch.no_grad(), run.around():
            bits = _bits(_logits(run.model(**run.inputs())))
        if first is not None and not torch.equal(first, bits):
            return False
        first = bits
    return True


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits as integers, which compare equal also for NaN."""
    import torch

    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def without_unfused_if_chosen(ledger: Ledger, target: Target, workload: Workload, *, grouped: bool = False) -> Ledger:
    """Remove the metric ``UNFUSED`` from a ledger if the run's operators may differ from those of the formulas.

    Routed experts depend on data and so do the bytes that the operators of their loop move; a device chooses operators
    too; and one operator of a run may be several in an export, or none. Only formulas define which ones there are.

    Args:
        grouped: whether experts are counted together (``Run.groups``). Then the formulas describe exactly that loop,
            and code that does not depend on the device.
    """
    chosen = workload.experts == "eager" or options_of(target).device != "meta"
    comparable = isinstance(target, WithFormulas) and (grouped or not chosen)
    return ledger if comparable else ledger.without((UNFUSED,))
