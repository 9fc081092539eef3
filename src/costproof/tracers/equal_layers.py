"""Compute the static ledger of a model with many equal layers from exports of its first layers.

An export takes as long as a model has layers. Two truncated models, of a and b > a layers, are exported and costed. The
ledger of b layers gives that of the whole model: a remaining layer stands for the omitted ones of its kind
(:mod:`~costproof.models.generic.truncation`), and work outside the layers grows by its difference between the two
models for as many layers as these differ in. If all omitted layers are of one kind, b is a + 1, the second to last
layer stands for them, and the last one is the last of the whole model. The result is used only if

- all kinds of layers remain, and the omitted layers are the last b - a several times, in any order,
- the ledger of a layers gives that of b layers, node by node and symbol by symbol,
- the whole model has the same parameters and buffers, by name, shape and dtype,
- a run of the whole model on the meta device has the same FLOPs by torch's formulas, elements of results and calls in
  every module, and
- no operator is unknown.

Such runs have dispatcher modes and hooks only, without traces and operator rules. All decode steps of a run are counted
one by one in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import sympy

from costproof.algebra.symbols import text
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.progress import silent
from costproof.ledger.workload import Workload
from costproof.models.generic.truncation import LayerSignature, Stack, stacks
from costproof.models.specs import Run
from costproof.models.target import Exportable, Runnable, Truncatable, options_of
from costproof.opgraph.liveness import LayerStack
from costproof.opgraph.merge import expression
from costproof.patches.inference import inference_context
from costproof.patches.modules import forward_redirected, hooked
from costproof.patches.patch import gc_disabled
from costproof.snapshots.copies import unchecked
from costproof.tracers.cpu_fallback import with_numbers
from costproof.tracers.flop_counter_ledger import FlopKey
from costproof.tracers.hooks import ROOT, Hooked, trace_hooks
from costproof.tracers.paths import Paths, dtype_name

if TYPE_CHECKING:
    from torch import nn

_FEWEST: Final = 16
"""Least number of omitted layers for which two small exports and a run are faster than one export."""
_TIMES: Final = 2
"""Least ratio of a model's layers to those of truncated models that replace the export of the model."""
COUNTED_FROM: Final = "counted from exports of"
_GOT: Final = "; got "
"""What comes before the part of a note that may state the cost of a whole graph."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A layer stack in a truncated model, and the number of its layers in the whole model."""

    path: str
    kept: int
    layers: int
    """Number of layers in the whole model."""
    kinds: tuple[int, ...] = ()
    """Kind of each layer of the whole model, as a number; empty if all omitted layers are of one kind."""

    def place(self, path: str) -> tuple[int, str] | None:
        """Return (layer index, path inside the layer) for a module path; ``None`` if it is outside of this stack."""
        inside = path.removeprefix(f"{self.path}.") if path.startswith(f"{self.path}.") else ""
        index, _, rest = inside.partition(".")
        return (int(index), rest) if index.isdecimal() else None

    def path_in(self, layer: int, rest: str) -> str:
        """Return the full path of the module at path ``rest`` inside layer number ``layer`` of this stack."""
        return ".".join(filter(None, (self.path, str(layer), rest)))

    def like(self, layer: int) -> int:
        """Return the layer of the truncated model that represents a layer of the whole model.

        Of equal layers the second to last represents the omitted ones, and the last is the last of the whole model. Of
        several kinds the last of each represents the omitted ones of its kind.
        """
        if self.kinds:
            same = (i for i in range(self.kept) if self.kinds[i] == self.kinds[layer])
            return layer if layer < self.kept else max(same)
        return self.kept - 1 if layer == self.layers - 1 else min(layer, self.kept - 2)

    def stands_for(self, layer: int) -> list[int]:
        """Return the layers of the whole model that a layer of the truncated model represents."""
        return [i for i in range(self.layers) if self.like(i) == layer]

    def times(self, before: int) -> int | None:
        """Return how many times the omitted layers are those that this truncated model has more than one before.

        ``None``: not a whole number of times.

        Args:
            before: number of layers of the truncated model before.
        """
        added, omitted = (Counter(self.kinds[i] if self.kinds else 0 for i in each) for each in (
            range(before, self.kept), range(self.kept, self.layers)
        ))  # fmt: skip
        times = sum(omitted.values()) // sum(added.values())
        return times if omitted == Counter({kind: times * n for kind, n in added.items()}) else None


CountTarget = Callable[[Exportable, "nn.Module"], Ledger]


def ledger_of_equal_layers(
    target: Exportable, workload: Workload, model: nn.Module, count: CountTarget
) -> Ledger | None:
    """Extrapolate the static ledger of a model from two truncated models; ``None`` if its layers are not shown equal.

    Args:
        model: the whole model, on the meta device.
        count: returns the static ledger of a truncated target.
    """
    options = options_of(target)
    if not isinstance(target, Truncatable) or options.layers is not None or options.convention or options.real:
        return None
    whole = {s.path: s for s in stacks(model)}
    long = [s for s in whole.values() if len(s.kinds) >= _FEWEST]
    depths = max((d for s in long if (d := _two_depths(s)) is not None), default=None)
    if depths is None:
        return None
    try:
        shallow, deeper = (_truncated(target, depth) for depth in depths)
        cuts = _cuts(shallow, whole, workload), _cuts(deeper, whole, workload)
        if not all(cuts) or sum(cut.layers - cut.kept for cut in cuts[1]) < _FEWEST:
            return None
        more = depths[1] - depths[0]
        if [(cut.path, cut.kept + more) for cut in cuts[0]] != [(cut.path, cut.kept) for cut in cuts[1]]:
            return None
        if any(t.invocations(workload) != target.invocations(workload) for t in (shallow, deeper)):
            return None
        built = [one.build(workload) for one in (shallow, deeper)]
        ledgers = count(shallow, built[0]), count(deeper, built[1])
        between = [replace(less, layers=cut.kept, kinds=cut.kinds[: cut.kept]) for less, cut in zip(*cuts, strict=True)]
        if not _agree(*ledgers, between) or not _same_tensors(model, built[1], cuts[1]):
            return None
        runs = [module_work(one, workload, PLACES[0]) for one in (shallow, deeper, target)]
    except Exception:  # of a truncated model, or of third-party code: the export of the whole model reports errors
        return None
    times = {cut.path: cut.times(less.kept) for less, cut in zip(*cuts, strict=True)}
    if not all(_same_work(fewer, deep, own, cuts[1], times) for fewer, deep, own in zip(*runs, strict=True)):
        return None
    found, outside = ledgers[1], _grown(*ledgers, cuts[1], times)
    if outside is None:
        return None
    nodes = tuple(_extrapolated(found.nodes, cuts[1], outside))
    said = " and ".join(f"{cut.path}: {cut.layers} layers" for cut in cuts[1])
    note = (
        f"{said}, {COUNTED_FROM} {cuts[0][0].kept} and {cuts[1][0].kept} of them; a run of the whole model on meta has "
        "the same FLOPs, results and calls in every module"
    )
    return replace(found, nodes=nodes, notes=(*(_notes(*ledgers) or ()), note))


def truncated_by_kinds(
    target: Exportable, workload: Workload, module: nn.Module | None = None
) -> tuple[Exportable, tuple[LayerStack, ...]] | None:
    """Return a target truncated to first layers in which each kind of omitted layers is at least twice, and its stacks.

    ``None``: no key truncates the model so, or half of its layers would remain.

    Args:
        module: the whole model, if it is built.
    """
    options = options_of(target)
    if not isinstance(target, Truncatable) or options.layers is not None or options.convention or options.real:
        return None
    whole = {s.path: s for s in stacks(target.build(workload) if module is None else module)}
    main = max(whole.values(), key=lambda stack: stack.parameters, default=None)
    if main is None:
        return None
    kept = _with_each_kind_twice(main)
    if _TIMES * kept > len(main.kinds) or kept == len(main.kinds):
        return None
    try:
        one = _truncated(target, kept)
    except (BadInput, Incomplete):  # no key of the configuration truncates it
        return None
    times = dict(one.cut.stretch.times) if one.cut else {}
    if len(times.get(main.path, ())) != kept or any(
        len(each) < _with_each_kind_twice(whole[path]) for path, each in times.items()
    ):
        return None
    return one, tuple(LayerStack(path, len(each), _numbered(whole[path])) for path, each in times.items())


def _with_each_kind_twice(stack: Stack) -> int:
    """Return the minimum number of first layers that has each kind, and each of the omitted ones twice."""
    seen: Counter[LayerSignature] = Counter()
    for at, kind in enumerate(stack.kinds):
        seen[kind] += 1
        if all(seen[each] > 1 for each in stack.kinds[at + 1 :]) and at + 1 >= stack.least:
            return max(at + 1, 2)
    return len(stack.kinds)


def _numbered(stack: Stack) -> tuple[int, ...]:
    """Return the kind of each layer as the number of the first layer of that kind."""
    return tuple(map(stack.kinds.index, stack.kinds))


def _two_depths(stack: Stack) -> tuple[int, int] | None:
    """Return the numbers of layers of the two truncated models that give the ledger of all layers; ``None``: none do.

    If all layers from one on are of one kind, the deeper model has one more of them than the other. Else the shallow
    one has every kind, and the layers that the deeper one has more are the omitted ones once, which are as many of each
    kind several times: some costs outside of layers grow with these.
    """
    count, last = len(stack.kinds), stack.kinds[-1]
    first = next((i + 1 for i in reversed(range(count)) if stack.kinds[i] != last), 0)
    if count - first - 3 >= _FEWEST:
        return first + 2, first + 3
    for more in range(stack.least + 1, min(count // _TIMES, count - _FEWEST) + 1):
        omitted = Counter(stack.kinds[more:])
        for depth in range(max(stack.least, 2), more):
            added = Counter(stack.kinds[depth:more])
            times = omitted.total() // added.total()
            if omitted == Counter({kind: times * n for kind, n in added.items()}):
                return depth, more
    return None


def _truncated(target: Truncatable, layers: int) -> Any:
    return target.with_options(replace(options_of(target), layers=layers))


def _cuts(target: Any, whole: Mapping[str, Stack], workload: Workload) -> list[_Cut]:
    """Return the truncated layer stacks; empty if a kind of omitted layers is none of those that remain."""
    if target.cut is None:
        return []
    found = []
    for path, each in target.cut.stretch.times:
        kinds = _numbered(whole[path])
        if not {*kinds} <= {*kinds[: len(each)]}:
            return []
        equal = len(each) > 1 and len({*kinds[len(each) - 2 :]}) == 1
        found.append(_Cut(path, len(each), len(kinds), () if equal else kinds))
    return found


def _agree(fewer: Ledger, more: Ledger, cuts: Sequence[_Cut]) -> bool:
    """Return whether the smaller model's ledger, extrapolated by one layer, equals the larger model's in all layers."""
    if fewer.unknown_ops or more.unknown_ops or fewer.stages != more.stages or _notes(fewer, more) is None:
        return False
    if fewer.attributes_bytes != more.attributes_bytes:
        return False
    given = {n.id: (n.costs, n.exprs) for n in _extrapolated(fewer.nodes, cuts, {})}
    expected = {n.id: (n.costs, n.exprs) for n in more.nodes}
    outside = {n.id for n in more.nodes if _located(n.module, cuts) is None}
    return given.keys() == expected.keys() and all(given[i] == expected[i] for i in given.keys() - outside)


def _notes(fewer: Ledger, more: Ledger) -> tuple[str, ...] | None:
    """Return the notes of two truncated models, without what grows with their layers; ``None`` if they differ."""
    short = [[note.partition(_GOT)[0] for note in ledger.notes] for ledger in (fewer, more)]
    if short[0] != short[1]:
        return None
    each = zip(fewer.notes, more.notes, short[0], strict=True)
    return tuple(note if note == other else alike for note, other, alike in each)


def _located(path: str, cuts: Iterable[_Cut]) -> tuple[_Cut, int, str] | None:
    """Return (stack, layer index, path inside the layer) for a module path; ``None`` outside of all stacks."""
    return next(((cut, *place) for cut in cuts if (place := cut.place(path)) is not None), None)


def _extrapolated(
    nodes: Iterable[CostNode], cuts: Sequence[_Cut], outside: Mapping[str, CostNode]
) -> Iterator[CostNode]:
    """Yield the cost nodes of the whole model, extrapolated from those of a truncated model.

    Args:
        outside: nodes of the whole model outside of the layers, by id, if they differ.
    """
    group: list[tuple[_Cut, int, str, CostNode]] = []

    def copies() -> Iterator[CostNode]:
        for layer in range(group[0][0].layers) if group else ():
            like = group[0][0].like(layer)
            for cut, own, rest, node in group:
                if own == like:
                    yield node if own == layer else replace(node, module=cut.path_in(layer, rest), evidence=())
        group.clear()

    for node in nodes:
        found = _located(node.module, cuts)
        if group and (found is None or found[0] is not group[0][0] or found[1] < group[-1][1]):
            yield from copies()
        if found is None:
            yield outside.get(node.id, node)
        else:
            group.append((*found, node))
    yield from copies()


_Times = Mapping[str, int | None]
"""How many times the omitted layers are those that the deeper truncated model has more, by path of the stack."""


def _grown(fewer: Ledger, more: Ledger, cuts: Sequence[_Cut], times: _Times) -> dict[str, CostNode] | None:
    """Return the nodes of the whole model, by id, that are outside of layers and whose costs grow with each layer.

    ``None`` if stacks with different numbers of omitted layers are in one stage, so that it is not known whose layers
    they grow with, or if the omitted layers are not those of the difference several times.
    """
    before = {n.id: n for n in fewer.nodes}
    omitted: dict[str, set[int | None]] = {}
    for node in more.nodes:
        if (found := _located(node.module, cuts)) is not None:
            omitted.setdefault(node.stage, set()).add(times[found[0].path])
    grown: dict[str, CostNode] = {}
    for node in more.nodes:
        old = before.get(node.id)
        if _located(node.module, cuts) is not None or (old and (old.costs, old.exprs) == (node.costs, node.exprs)):
            continue
        if old is None or len(counts := omitted.get(node.stage, set())) != 1:
            return None
        (layers,) = counts
        if layers is None:
            return None
        costs: dict[Metric, int | None] = {}
        for metric in {**node.costs, **old.costs}:
            new, first = node.cost(metric), old.cost(metric)
            costs[metric] = None if new is None or first is None else new + layers * (new - first)
        exprs: dict[Metric, str] = {}
        for metric in {**node.exprs, **old.exprs}:
            terms = expression(node, metric), expression(old, metric)
            if terms[0] is None or terms[1] is None:
                return None
            exprs[metric] = text(sympy.expand(terms[0] + layers * (terms[0] - terms[1])))
        grown[node.id] = replace(node, costs=costs, exprs=exprs)
    return grown


def _same_tensors(whole: nn.Module, truncated: nn.Module, cuts: Sequence[_Cut]) -> bool:
    """Return whether the whole model has exactly the parameters and buffers that the truncated one predicts."""

    def tensors(model: nn.Module) -> dict[str, tuple[tuple[int, ...], str]]:
        every = (*model.named_parameters(), *model.named_buffers())
        return {name: (tuple(t.shape), dtype_name(t.dtype)) for name, t in every}

    given: dict[str, Any] = {}
    for name, tensor in tensors(truncated).items():
        found = _located(name, cuts)
        names = [name] if found is None else [found[0].path_in(i, found[2]) for i in found[0].stands_for(found[1])]
        given |= dict.fromkeys(names, tensor)
    return given == tensors(whole)


def _same_work(fewer: ModuleWork, more: ModuleWork, whole: ModuleWork, cuts: Sequence[_Cut], times: _Times) -> bool:
    """Return whether each module of the whole model does as much work as runs of both truncated models predict."""
    layers = {*times.values()}
    for kind in ("flops", "elements", "calls"):
        before, after, own = (Counter(getattr(work, kind)) for work in (fewer, more, whole))
        given = Counter[str]()
        for path, amount in after.items():
            found = _located(path, cuts)
            if found is not None:
                given.update(
                    dict.fromkeys((found[0].path_in(i, found[2]) for i in found[0].stands_for(found[1])), amount)
                )
            elif amount == before[path]:
                given[path] = amount
            elif len(layers) == 1 and (count := next(iter(layers))) is not None:
                given[path] = amount + count * (amount - before[path])
            else:
                return False
        if +given != +own:
            return False
    return True


# --- Runs without traces ---------------------------------------------------------------------------------------------

PLACES: Final = ("as it is given", "with numbers")
"""Forms of a run: on meta, or with concrete values for a model that needs them."""


@dataclass(frozen=True, slots=True)
class ModuleWork:
    """Work of one run by module, without the work of submodules."""

    run: str
    flops: Counter[str] = field(default_factory=Counter)
    """FLOPs by torch's own formulas, by module path."""
    elements: Counter[str] = field(default_factory=Counter)
    """Elements of the floating-point results of all operators, including views, by module path."""
    calls: Counter[str] = field(default_factory=Counter)

    def sums(self, times: Callable[[str], int]) -> dict[str, int]:
        """Return total FLOPs, elements and calls of a model with ``times(path)`` copies of the module at each path."""
        found = {"FLOPs": self.flops, "elements of results": self.elements, "calls of modules": self.calls}
        return {what: sum(n * times(path) for path, n in each.items()) for what, each in found.items()}


def module_work(target: Runnable, workload: Workload, place: str) -> list[ModuleWork]:
    """Execute the runs of a target; return the FLOPs, result elements and calls of each module in each run.

    Args:
        place: one of :data:`PLACES`.

    Raises:
        Exception: whatever the model raises if it cannot run.
    """
    model = target.build_run(workload, silent).model
    runs = target.runs(model, workload)
    return [_work(with_numbers(run) if place == PLACES[1] else run) for run in runs]


def _work(run: Run) -> ModuleWork:
    from costproof.tracers.flop_counter_mode import CountingMode

    found, paths, kwargs = ModuleWork(run.id), Paths(run.model), run.inputs()
    judge = CountingMode([], "")

    def enter(module: Any, args: Any, kwargs: Any) -> None:
        path = paths.by_id[id(module)]
        found.calls[path] += 1
        judge.running.append((path, 1, None))

    def leave(module: Any, args: Any, kwargs: Any, result: Any) -> None:
        judge.running.pop()

    on_cpu = any(p.device.type != "meta" for p in run.model.parameters())
    with ExitStack() as around:
        around.enter_context(gc_disabled())
        around.enter_context(unchecked() if on_cpu else nullcontext())
        around.enter_context(run.around())
        around.enter_context(inference_context(run.model))
        around.enter_context(hooked(paths.modules.values(), enter, leave, with_kwargs=True))
        around.enter_context(forward_redirected(run.model))
        around.enter_context(judge.watching())
        run.model(**kwargs)
    for (where, _), flops in judge.seen.flops.items():
        found.flops[where[-1][0] if where else ""] += flops
    return replace(found, elements=judge.elements)


COUNTED: Final[tuple[Metric, ...]] = ("flops", "kv_cache_bytes")
"""Metrics that involve neither operator rules nor the accounting of graphs."""


def count_every_step(target: Runnable, workload: Workload, source: str) -> Ledger:
    """Add up torch's FLOPs and the cache growth over all forwards of a run, including every decode step.

    The last of n steps is always among a target's runs, so step i is the last of a run of i steps.

    Args:
        source: name of the ledger.

    Raises:
        Incomplete: torch has no formula for an operator, or a step begins with another cache than it should.
    """
    model = target.build_run(workload, silent).model
    sums: dict[tuple[FlopKey, Metric], int] = {}
    contexts: list[int] = []
    for steps in range(1, workload.new_tokens + 1):
        *before, last = target.runs(model, replace(workload, new_tokens=steps))
        contexts.append(last.context or 0)
        for run in (last,) if steps > 1 else (*before, last):
            with gc_disabled(), run.around():
                _add(sums, run, trace_hooks(run))
    if contexts != list(range(contexts[0], contexts[0] + workload.new_tokens)):
        raise Incomplete(
            "the cache does not grow by one token in each decode step", where=target.info().name,
            expected=f"{workload.new_tokens} consecutive lengths", got=contexts,
        )  # fmt: skip
    nodes = (CostNode(*quantity, {metric: value}) for (quantity, metric), value in sums.items())
    return Ledger(source, tuple(nodes), COUNTED, target.info().stages)


def _add(sums: dict[tuple[FlopKey, Metric], int], run: Run, seen: Hooked) -> None:
    if seen.judged.unjudged:
        names = sorted({name for _, name in seen.judged.unjudged})
        raise Incomplete("torch has no FLOP formula for an operator", where=run.id, got=", ".join(names))
    for quantity, flops in seen.judged.placed(run).items():
        sums[quantity, "flops"] = sums.get((quantity, "flops"), 0) + flops
    for name, size in seen.cache_growth.items():
        path = name.removeprefix(ROOT)
        place: FlopKey = (*run.locate(path, 1), path, "")
        sums[place, "kv_cache_bytes"] = sums.get((place, "kv_cache_bytes"), 0) + size
