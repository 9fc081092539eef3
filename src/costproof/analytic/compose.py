"""Compose layers into cost nodes: assign formulas to modules, and evaluate them for each call of a stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, TypeVar

import sympy

from costproof.algebra.series import CACHED, CONTEXT, STEPS, sum_over_steps
from costproof.algebra.symbols import sym, text
from costproof.analytic.costs import IN_DTYPE_OF_RUN, CacheShares, Layer, LayerCosts, Size, costs_of, layer
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import (
    COMM,
    FLOOR,
    IN_FLOAT32,
    KEPT_FLOPS,
    KEPT_SCORES,
    METRICS,
    OF_CHECKPOINT,
    SKIPPABLE,
    STAGE_WIDE,
    TRAFFIC,
    UNFUSED,
    Metric,
)
from costproof.ledger.node import CostNode, Ledger


@layer
class Container:
    """Layer of a module that only calls child modules, which have all costs."""

    name: ClassVar[str] = "container"
    title: ClassVar[str] = "Module that only calls others"
    source: ClassVar[str] = "torch.nn.Module"

    def costs(self) -> LayerCosts:
        """Return zero costs."""
        return LayerCosts(intermediate_bytes=0)


CONTAINER: Final = Container()


@dataclass(frozen=True, slots=True)
class StackCall:
    """Sizes of one call of a stack of layers: batch, new tokens, cached tokens."""

    batch: Size
    """Number of sequences."""
    tokens: Size
    """Number of new tokens per sequence."""
    item_bytes: Size
    past: Size = 0
    """Number of cached tokens per sequence before the call."""
    memory: Size = 0
    """Number of new keys per sequence for cross attention; 0 if all of them are in the cache."""
    memory_past: Size = 0
    """Number of cached keys per sequence for cross attention before the call."""

    @property
    def rows(self) -> Size:
        """Return the number of new tokens of all sequences, batch x tokens."""
        return self.batch * self.tokens


@dataclass(frozen=True, slots=True)
class ModulePart:
    """A module's role and the formulas of its own operators; child modules are separate parts."""

    role: str
    """Name of the module's function, independent of implementations: ``text.layer.mlp.gate``."""
    layers: tuple[Layer, ...] = (CONTAINER,)
    """Formulas of the module's operators; the first one is the owner of the module's cost node."""
    called: bool = True
    """Whether the module's forward runs; a module that is not called may still own parameters."""
    times: int = 1
    """Number of forward runs in one call of the model; ``layers`` give the costs of all these runs together."""
    group: bool = False
    """Whether the part represents several submodules, such as experts, of which data decides which ones run.

    It has the costs of all of them together and counts no calls.
    """
    i: int = 0
    """Index of the layer that contains the module."""


def _one_call(expr: sympy.Expr) -> sympy.Expr:
    return expr


K = TypeVar("K")
V = TypeVar("V")


def by_identity(function: Callable[[K], V]) -> Callable[[K], V]:
    """Return a function memoized by the identity of its argument; the memo keeps arguments alive.

    Equal layers of a model share the formulas of their modules; to hash these takes longer than everything else.
    """
    known: dict[int, tuple[K, V]] = {}

    def memoized(key: K) -> V:
        found = known.get(id(key))
        if found is None:
            found = known[id(key)] = key, function(key)
        return found[1]

    return memoized


def in_layer(i: int, parts: Iterable[ModulePart]) -> tuple[ModulePart, ...]:
    """Return the parts with layer index ``i``."""
    return tuple(ModulePart(p.role, p.layers, p.called, p.times, p.group, i) for p in parts)


def module_of(part: ModulePart, names: Mapping[str, str]) -> str:
    """Return the module path of a part in an implementation.

    Args:
        names: role -> module path, with ``{i}`` for the number of the layer.

    Raises:
        BadInput: the implementation has no path for the role.
    """
    path = names.get(part.role)
    if path is None:
        raise BadInput(
            "an implementation names no module for a role of the formulas", where=part.role, expected="a module path"
        )
    return path.replace("{i}", str(part.i))


_WITHOUT_WEIGHTS: Final = (".attention", "lm_head")
"""Suffixes of the roles of modules that need storage metrics without own parameters: cache scales, tied projections."""


@dataclass(frozen=True, slots=True)
class HeldNode(CostNode):
    """Stage-wide node of a module that keeps the layers from which its storage metrics are computed later."""

    layers: tuple[Layer, ...] = ()


def stage_nodes(stage: str, parts: Iterable[ModulePart], names: Mapping[str, str]) -> Iterator[CostNode]:
    """Yield the stage-wide nodes of each module's parameters and buffers; ``names`` is as for :func:`module_of`."""
    held = by_identity(_held_costs)
    for part in parts:
        owner, exprs, unknown = held(part.layers)
        if exprs or part.role.endswith(_WITHOUT_WEIGHTS):
            costs: dict[Metric, int | None] = dict.fromkeys(unknown)
            yield HeldNode(
                stage, "", module_of(part, names), "", costs, dict(exprs), owner, role=part.role, layers=part.layers
            )


def invocation_nodes(
    stage: str,
    invocation: str,
    parts: Iterable[ModulePart],
    names: Mapping[str, str],
    *,
    border: Size | None = None,
    calls: Size = 1,
    summed: Callable[[sympy.Expr], sympy.Expr] = _one_call,
    cache: CacheShares = IN_DTYPE_OF_RUN,
) -> Iterator[CostNode]:
    """Yield the costs of one invocation by module and operator kind, with ``floor_bytes`` on the root.

    Args:
        names: see :func:`module_of`.
        border: bytes of activations, given masks included, that cross the boundary of the stage in one call; ``None``
            if not
            derived, in which case there is no floor.
        calls: calls of the stage in the invocation.
        summed: maps the cost of one call to the cost of all of them (decode steps).
        cache: bytes of the cache in its format for each byte in the run's dtype.
    """
    called = [(module_of(part, names), part) for part in parts if part.called]
    found = _texts()
    if border is not None:
        found = _texts((FLOOR, summed(border + _lasting_bytes((part for _, part in called), cache))))
    each = {id(part.layers): part.layers for _, part in called}
    unknown = _unknown_metrics(costs_of(x) for layers in each.values() for x in layers)
    unsaid: dict[Metric, int | None] = {FLOOR: None} if border is None or "weight_read_bytes" in unknown else {}
    root = names.get("root", "")
    if all(module != root for module, _ in called):
        yield CostNode(stage, invocation, root, "", unsaid, found, CONTAINER.name, role="root")
    costs_in = by_identity(lambda layers: _module_costs(layers, summed, cache))
    for module, part in called:
        whole, kinds, unknown = costs_in(part.layers)
        counted = _texts(("calls", 0 if part.group else part.times * calls))
        costs: dict[Metric, int | None] = dict.fromkeys(unknown)
        if module == root:
            costs, counted, found, unsaid = costs | unsaid, counted | found, {}, {}
        yield CostNode(stage, invocation, module, "", costs, counted | whole, part.layers[0].name, role=part.role)
        for kind, owner, exprs in kinds:
            yield CostNode(stage, invocation, module, kind, {}, dict(exprs), owner, role=part.role)


def _lasting_bytes(parts: Iterable[ModulePart], cache: CacheShares) -> sympy.Expr:
    """Return the bytes of parameters, buffers and cache that the modules read or write in a call."""
    found = [part.layers for part in parts]
    each, number = {id(layers): layers for layers in found}, Counter[tuple[Layer, ...]]()
    for key, n in Counter(map(id, found)).items():
        number[each[key]] += n
    return sum_sizes(n * costs_of(x).with_cache(cache).lasting_bytes for layers, n in number.items() for x in layers)


_Texts = dict[Metric, str]


@lru_cache(maxsize=8192)
def _held_costs(layers: tuple[Layer, ...]) -> tuple[str, _Texts, frozenset[Metric]]:
    """Return the owner of a module's parameters, the costs of parameters and buffers, and the unknown metrics.

    Memoized, so that equal modules are computed once.
    """
    costs = [costs_of(layer) for layer in layers]
    exprs = _texts(
        ("params", sum_sizes(c.params for c in costs)),
        ("params_active", sum_sizes(c.active for c in costs)),
        ("weight_bytes", sum_sizes(c.weight_bytes for c in costs)),
        ("buffer_bytes", sum_sizes(c.buffer_bytes for c in costs)),
    )
    held = [x.name for x, c in zip(layers, costs, strict=True) if c.params != 0]
    held += [x.name for x, c in zip(layers, costs, strict=True) if c.buffer_bytes != 0]
    return held[0] if held else "", exprs, _unknown_metrics(costs) & STAGE_WIDE


def _unknown_metrics(costs: Iterable[LayerCosts]) -> frozenset[Metric]:
    """Return the metrics that are unknown in at least one of the layers."""
    return frozenset[Metric]().union(*(c.unknown for c in costs))


@lru_cache(maxsize=8192)
def _module_costs(
    layers: tuple[Layer, ...], summed: Callable[[sympy.Expr], sympy.Expr], cache: CacheShares
) -> tuple[_Texts, tuple[tuple[str, str, _Texts], ...], frozenset[Metric]]:
    """Return a module's bytes, (operator kind, layer, FLOPs) of its operators, and its unknown metrics.

    Memoized, so that equal modules are computed once.
    """
    costs = [costs_of(layer).with_cache(cache) for layer in layers]
    kinds = []
    for kind in {k: None for c in costs for k in (*c.flops, *c.vector_flops, *c.exchanges)}:
        sent = [c.exchanges[kind] for c in costs if kind in c.exchanges]
        exprs = _texts(
            ("flops", summed(sum_sizes(c.flops.get(kind, 0) for c in costs))),
            ("vector_flops", summed(sum_sizes(c.vector_flops.get(kind, 0) for c in costs))),
            (KEPT_FLOPS, summed(sum_sizes(c.flops.get(kind, 0) - c.hidden_flops.get(kind, 0) for c in costs))),
            (KEPT_SCORES, summed(sum_sizes(c.kept_scores.get(kind, 0) for c in costs))),
            (SKIPPABLE, summed(sum_sizes(c.skippable_flops.get(kind, 0) for c in costs))),
            (IN_FLOAT32, summed(sum_sizes(c.float32_flops.get(kind, 0) for c in costs))),
            ("comm_bytes", summed(sum_sizes(x.sent_bytes for x in sent))),
            ("comm_payload_bytes", summed(sum_sizes(x.payload_bytes for x in sent))),
            ("messages", summed(sum_sizes(x.messages for x in sent))),
        )
        if exprs:
            owner = next(
                x.name
                for x, c in zip(layers, costs, strict=True)
                if c.flops.get(kind, 0) != 0 or c.vector_flops.get(kind, 0) != 0 or kind in c.exchanges
            )
            kinds.append((kind, owner, exprs))
    moved = [(m, summed(sum_sizes(getattr(c, m) for c in costs))) for m in TRAFFIC]
    known = [size for c in costs if (size := c.unfused_bytes) is not None]
    whole = _texts(*moved, (UNFUSED, summed(sum_sizes(known))))
    return whole, tuple(kinds), _unknown_metrics(costs) - STAGE_WIDE


def prefill_and_decode(
    parts: Callable[[StackCall], tuple[ModulePart, ...]],
    names: Mapping[str, str],
    *,
    border: Callable[[StackCall], Size | None] = lambda call: None,
    decode: bool = True,
    cache: CacheShares = IN_DTYPE_OF_RUN,
    past: bool = False,
    first_id: str = "prompt",
) -> Iterator[CostNode]:
    """Yield the nodes of ``prefill``, a prompt of S tokens, and of ``decode``, N steps at contexts P to P + N - 1.

    Args:
        parts: returns the modules of one call of the decoder.
        names: see :func:`module_of`.
        border: bytes across the boundary of a call; see :func:`invocation_nodes`.
        decode: whether there are decode steps; their stage owns its parameters in any case.
        cache: see :func:`invocation_nodes`.
        past: whether C tokens are in the cache before the prompt.
        first_id: name of the invocation of the prefill.
    """
    first = prompt_call(past=past)
    prompt = parts(first)
    yield from stage_nodes("prefill", prompt, names)
    yield from invocation_nodes("prefill", first_id, prompt, names, border=border(first), cache=cache)
    one = StackCall(sym("B"), 1, sym("b"), past=CONTEXT)
    step = parts(one)
    yield from stage_nodes("decode", step, names)
    if decode:
        yield from invocation_nodes(
            "decode", "steps", step, names, border=border(one), calls=STEPS, summed=sum_over_steps, cache=cache
        )


def prompt_call(*, past: bool) -> StackCall:
    """Return the sizes of a prefill of S tokens; ``past`` is as for :func:`prefill_and_decode`."""
    return StackCall(sym("B"), sym("S"), sym("b"), past=CACHED if past else 0)


def analytic_ledger(
    nodes: Iterable[CostNode],
    stages: tuple[str, ...],
    conventions: Mapping[str, str] | None = None,
    *,
    parallel: bool = False,
) -> Ledger:
    """Return the analytic ledger of these nodes, without metrics that are unknown in any of them.

    The metrics of storage are left to :func:`~costproof.analytic.storage.with_storage`.

    Args:
        parallel: whether it is of one rank of several, which has the metrics of collectives too.
    """
    found = tuple(nodes)
    left = {*OF_CHECKPOINT, *(metric for node in found for metric, cost in node.costs.items() if cost is None)}
    metrics = (*METRICS, *(COMM if parallel else ()))
    return Ledger("analytic", found, metrics, stages, conventions=dict(conventions or {}), bounds=True).without(left)


def sum_sizes(sizes: Iterable[Size]) -> sympy.Expr:
    """Return the sum of some sizes as a sympy expression."""
    return sympy.Add(*(sympy.sympify(size) for size in sizes))


def _texts(*metrics: tuple[Metric, Size]) -> dict[Metric, str]:
    """Return the nonzero metrics, with their values as canonical formula text."""
    return {metric: text(sympy.sympify(size)) for metric, size in metrics if size != 0}
