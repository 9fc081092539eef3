"""From layers to cost nodes: which formulas stand behind which module, in which call of which stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final

import sympy

from costproof.algebra.series import CONTEXT, STEPS, sum_over_steps
from costproof.algebra.symbols import sym, text
from costproof.analytic.costs import Layer, LayerCosts, Size, costs_of, layer
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import FLOOR, IN_FLOAT32, METRICS, SKIPPABLE, STAGE_WIDE, TRAFFIC, UNFUSED, Metric
from costproof.ledger.node import CostNode, Ledger


@layer
class Container:
    """A module without operators of its own: it is called, and everything it costs is in its children."""

    name: ClassVar[str] = "container"
    title: ClassVar[str] = "Module that only calls others"
    source: ClassVar[str] = "torch.nn.Module"

    def costs(self) -> LayerCosts:
        """Nothing."""
        return LayerCosts(between=0)


CONTAINER: Final = Container()


@dataclass(frozen=True, slots=True)
class Call:
    """The sizes of one call of a stack of layers."""

    batch: Size
    """Sequences."""
    tokens: Size
    """New tokens per sequence."""
    item_bytes: Size
    past: Size = 0
    """Tokens per sequence in the cache before the call."""
    memory: Size = 0
    """New keys per sequence for cross attention; 0: those of the cache alone."""
    memory_past: Size = 0
    """Keys for cross attention in the cache before the call."""

    @property
    def rows(self) -> Size:
        """Tokens of all sequences."""
        return self.batch * self.tokens


@dataclass(frozen=True, slots=True)
class Part:
    """One module and the formulas of its own operators; children are parts of their own."""

    role: str
    """What it is in the model, in words that no implementation chooses: ``text.layer.mlp.gate``."""
    layers: tuple[Layer, ...] = (CONTAINER,)
    """Several formulas where one module does several things; the first owns the module's node."""
    called: bool = True
    """Whether its forward runs; a module that is not called may still own parameters."""
    times: int = 1
    """How often its forward runs in one call of the model; ``layers`` say what all these runs cost."""
    group: bool = False
    """Whether it stands for modules below it of which data decides which run: it has their costs, and no calls."""
    i: int = 0
    """The number of the layer that it stands in."""


def _one_call(expr: sympy.Expr) -> sympy.Expr:
    return expr


def numbered(i: int, parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts as those of layer ``i``."""
    return tuple(replace(part, i=i) for part in parts)


def module_of(part: Part, names: Mapping[str, str]) -> str:
    """The module path of a part in an implementation.

    Args:
        names: role -> module path, in which ``{i}`` is the number of the layer.

    Raises:
        BadInput: the implementation does not say where the part sits.
    """
    path = names.get(part.role)
    if path is None:
        raise BadInput("an implementation does not name a part of the model", where=part.role, expected="a module path")
    return path.replace("{i}", str(part.i))


def stage_nodes(stage: str, parts: Iterable[Part], names: Mapping[str, str]) -> Iterator[CostNode]:
    """What the modules of a stage hold whatever is run: parameters and buffers; names as in :func:`module_of`."""
    for part in parts:
        owner, exprs, unknown = _held(part.layers)
        if exprs:
            costs: dict[Metric, int | None] = dict.fromkeys(unknown)
            yield CostNode(stage, "", module_of(part, names), "", costs, dict(exprs), owner, role=part.role)


def invocation_nodes(
    stage: str,
    invocation: str,
    parts: Iterable[Part],
    names: Mapping[str, str],
    *,
    border: Size | None = None,
    calls: Size = 1,
    summed: Callable[[sympy.Expr], sympy.Expr] = _one_call,
) -> Iterator[CostNode]:
    """What one invocation costs, per module and per operator kind, and on the root what it moves at least.

    Args:
        names: see :func:`module_of`.
        border: bytes of activations, given masks among them, that pass between the stage and what is outside of it in
            one call; ``None``: not worked out, so neither is the floor.
        calls: how often the stage runs in the invocation.
        summed: from the cost of one call to the cost of all of them (decode steps).
    """
    called = [(module_of(part, names), part) for part in parts if part.called]
    found = _texts() if border is None else _texts((FLOOR, summed(border + _lasting(part for _, part in called))))
    unknown = _unknown(costs_of(x) for _, part in called for x in part.layers)
    unsaid: dict[Metric, int | None] = {FLOOR: None} if border is None or "weight_read_bytes" in unknown else {}
    root = names.get("root", "")
    if all(module != root for module, _ in called):
        yield CostNode(stage, invocation, root, "", unsaid, found, CONTAINER.name, role="root")
    for module, part in called:
        whole, kinds, unknown = _spent(part.layers, summed)
        counted = _texts(("calls", 0 if part.group else part.times * calls))
        costs: dict[Metric, int | None] = dict.fromkeys(unknown)
        if module == root:
            costs, counted, found, unsaid = costs | unsaid, counted | found, {}, {}
        yield CostNode(stage, invocation, module, "", costs, counted | whole, part.layers[0].name, role=part.role)
        for kind, owner, exprs in kinds:
            yield CostNode(stage, invocation, module, kind, {}, dict(exprs), owner, role=part.role)


def _lasting(parts: Iterable[Part]) -> sympy.Expr:
    """Bytes of parameters, buffers and the cache that all these modules read and write; equal ones are counted."""
    number = Counter(part.layers for part in parts)
    return sum_sizes(n * costs_of(x).lasting_bytes for layers, n in number.items() for x in layers)


_Texts = dict[Metric, str]


@lru_cache(maxsize=8192)
def _held(layers: tuple[Layer, ...]) -> tuple[str, _Texts, frozenset[Metric]]:
    """Return the formula that owns the parameters of a module, or else its buffers, what both come to, and the metrics
    of these that are not known; computed once for equal modules."""
    costs = [costs_of(layer) for layer in layers]
    exprs = _texts(
        ("params", sum_sizes(c.params for c in costs)),
        ("params_active", sum_sizes(c.active for c in costs)),
        ("weight_bytes", sum_sizes(c.weight_bytes for c in costs)),
        ("buffer_bytes", sum_sizes(c.buffer_bytes for c in costs)),
    )
    held = [x.name for x, c in zip(layers, costs, strict=True) if c.params != 0]
    held += [x.name for x, c in zip(layers, costs, strict=True) if c.buffer_bytes != 0]
    return held[0] if held else "", exprs, _unknown(costs) & STAGE_WIDE


def _unknown(costs: Iterable[LayerCosts]) -> frozenset[Metric]:
    """The metrics that one of these layers does not give."""
    return frozenset[Metric]().union(*(c.unknown for c in costs))


@lru_cache(maxsize=8192)
def _spent(
    layers: tuple[Layer, ...], summed: Callable[[sympy.Expr], sympy.Expr]
) -> tuple[_Texts, tuple[tuple[str, str, _Texts], ...], frozenset[Metric]]:
    """What a module moves, (kind, formula, FLOPs) of its operators, and the metrics that its formulas do not give;
    computed once for equal modules."""
    costs = [costs_of(layer) for layer in layers]
    kinds = []
    for kind in {k: None for c in costs for k in (*c.flops, *c.vector_flops)}:
        exprs = _texts(
            ("flops", summed(sum_sizes(c.flops.get(kind, 0) for c in costs))),
            ("vector_flops", summed(sum_sizes(c.vector_flops.get(kind, 0) for c in costs))),
            (SKIPPABLE, summed(sum_sizes(c.skippable_flops.get(kind, 0) for c in costs))),
            (IN_FLOAT32, summed(sum_sizes(c.float32_flops.get(kind, 0) for c in costs))),
        )
        if exprs:
            owner = next(
                x.name
                for x, c in zip(layers, costs, strict=True)
                if c.flops.get(kind, 0) != 0 or c.vector_flops.get(kind, 0) != 0
            )
            kinds.append((kind, owner, exprs))
    moved = [(m, summed(sum_sizes(getattr(c, m) for c in costs))) for m in TRAFFIC]
    known = [size for c in costs if (size := c.unfused_bytes) is not None]
    whole = _texts(*moved, (UNFUSED, summed(sum_sizes(known))))
    return whole, tuple(kinds), _unknown(costs) - STAGE_WIDE


def prefill_and_decode(
    parts: Callable[[Call], tuple[Part, ...]],
    names: Mapping[str, str],
    *,
    border: Callable[[Call], Size | None] = lambda call: None,
    decode: bool = True,
) -> Iterator[CostNode]:
    """The stages ``prefill``, a prompt of S tokens, and ``decode``, N steps at contexts P, P + 1, …, P + N - 1.

    Args:
        parts: the modules of one call of the decoder.
        names: see :func:`module_of`.
        border: of such a call, as of :func:`invocation_nodes`.
        decode: whether there are steps; their stage owns its parameters in any case.
    """
    first = Call(sym("B"), sym("S"), sym("b"))
    prompt = parts(first)
    yield from stage_nodes("prefill", prompt, names)
    yield from invocation_nodes("prefill", "prompt", prompt, names, border=border(first))
    one = Call(sym("B"), 1, sym("b"), past=CONTEXT)
    step = parts(one)
    yield from stage_nodes("decode", step, names)
    if decode:
        yield from invocation_nodes(
            "decode", "steps", step, names, border=border(one), calls=STEPS, summed=sum_over_steps
        )


def analytic_ledger(
    nodes: Iterable[CostNode], stages: tuple[str, ...], conventions: Mapping[str, str] | None = None
) -> Ledger:
    """The ledger of some formulas. A metric that one of their layers does not say is not among its own."""
    found = tuple(nodes)
    left = {metric for node in found for metric, cost in node.costs.items() if cost is None}
    return Ledger("analytic", found, tuple(METRICS), stages, conventions=dict(conventions or {}), bounds=True).without(
        left
    )


def sum_sizes(sizes: Iterable[Size]) -> sympy.Expr:
    """The sum as an expression."""
    return sympy.Add(*(sympy.sympify(size) for size in sizes))


def _texts(*metrics: tuple[Metric, Size]) -> dict[Metric, str]:
    """The metrics that are not zero, as canonical text."""
    return {metric: text(sympy.sympify(size)) for metric, size in metrics if size != 0}
