"""From a costed graph to the nodes of a ledger: every operator placed, every byte too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import sympy

from costproof.graph.costed import Costed
from costproof.graph.graph import Graph, ModuleCall, OpCall, Size, Value
from costproof.graph.merge import evidence, merge_unknown
from costproof.graph.rules.names import source_kind
from costproof.graph.rules.registry import UnknownCost
from costproof.graph.rules.sizes import total
from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, UnknownOp
from costproof.ledger.symbols import text

Place = Callable[[str, int], tuple[str, str] | None]
"""(module path, number of its call) -> (stage, invocation), or ``None`` for scaffolding that is not counted."""

_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Accounted:
    """Nodes and unknown operators of one graph."""

    nodes: tuple[CostNode, ...]
    unknown: tuple[UnknownOp, ...]


@dataclass(slots=True)
class _Sums:
    costs: dict[Metric, list[Size]] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)

    def add(self, metric: Metric, size: Size) -> None:
        if size != 0:
            self.costs.setdefault(metric, []).append(size)


def account(costed: Costed, place: Place) -> Accounted:
    """Sum the costs of a graph by stage, invocation, module and operator kind.

    Kind nodes carry ``flops`` and ``vector_flops``; nodes with an empty kind carry ``calls``,
    ``weight_read_bytes``, ``input_bytes`` and ``output_bytes``. Zeros are left out. Numbers stand in ``costs``;
    for a graph with symbolic shapes every quantity also stands in ``exprs``, and what is not constant only there.
    Parameters and the cache are not a matter of operators and not counted here.

    Raises:
        Incomplete: an operator of the scaffolding computes.
    """
    graph = costed.graph
    sums: dict[_Key, _Sums] = {}
    unknown: list[UnknownOp] = []
    where: dict[tuple[str, int], tuple[str, str] | None] = {}

    def located(module: str, call: int) -> tuple[str, str] | None:
        if (module, call) not in where:
            where[module, call] = place(module, call)
        return where[module, call]

    for op, cost in zip(graph.ops, costed.costs, strict=True):
        here = located(op.module, op.call)
        if isinstance(cost, UnknownCost):
            bound = cost.bound if isinstance(cost.bound, int) else None
            stage = here[0] if here else "[unattributed]"
            unknown.append(UnknownOp(source_kind(op.name), stage, op.module, 1, bound, cost.why))
        elif cost.flops != 0 or cost.vector != 0:
            if here is None:
                raise _stray(op)
            node = sums.setdefault((*here, op.module, source_kind(op.name)), _Sums())
            node.add("flops", cost.flops)
            node.add("vector_flops", cost.vector)
            node.labels.append(op.label)
    for call in graph.calls:
        here = located(call.module, call.call)
        if here is not None:
            sums.setdefault((*here, call.module, ""), _Sums()).add("calls", 1)
    for (module, number), traffic in costed.traffic.items():
        here = located(module, number)
        if here is not None:
            node = sums.setdefault((*here, module, ""), _Sums())
            node.add("weight_read_bytes", traffic.weight_read_bytes)
            node.add("input_bytes", traffic.input_bytes)
            node.add("output_bytes", traffic.output_bytes)
    owners = {call.module: call.class_name for call in graph.calls}
    symbolic = is_symbolic(graph)
    return Accounted(
        nodes=tuple(_node(key, value, owners, symbolic) for key, value in sums.items() if value.costs),
        unknown=merge_unknown(unknown),
    )


def is_symbolic(graph: Graph) -> bool:
    """Whether any shape of the graph has a symbol in it."""
    return any(not isinstance(size, int) for op in graph.ops for v in (*op.tensors, *op.outputs) for size in v.shape)


def _node(key: _Key, sums: _Sums, owners: Mapping[str, str], symbolic: bool) -> CostNode:
    stage, invocation, module, kind = key
    sizes = {metric: total(terms) for metric, terms in sums.costs.items()}
    return CostNode(
        stage=stage,
        invocation=invocation,
        module=module,
        kind=kind,
        costs={metric: size for metric, size in sizes.items() if isinstance(size, int)},
        exprs={metric: _text(size) for metric, size in sizes.items()} if symbolic else {},
        owner=owners.get(module, ""),
        evidence=evidence(sums.labels),
    )


@lru_cache(maxsize=65536)
def _text(size: Size) -> str:
    return text(size)


def _stray(op: OpCall) -> Incomplete:
    return Incomplete(
        "an operator outside all counted modules computes",
        where=f"{op.label} in {op.module or '(root)'}",
        expected="work inside the modules of the target",
        got=op.name,
        fix="give the module a prefix in the export job",
    )


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
    for sign, values in ((1, graph.cache_outputs), (-1, cache_inputs)):
        for value in values:
            module = writer.get(value.id) or reader.get(value.id, "")
            growth[module] = growth.get(module, sympy.Integer(0)) + sign * sympy.sympify(value.nbytes)
    nodes = []
    for module, grown in growth.items():
        expr = sympy.expand(grown)
        if expr != 0:
            costs: dict[Metric, int | None] = {"kv_cache_bytes": int(expr)} if expr.is_Integer else {}
            exprs: dict[Metric, str] = {"kv_cache_bytes": text(expr)}
            nodes.append(CostNode(stage, invocation, module, "", costs, exprs))
    return nodes


Locate = Callable[[str, int], tuple[str, str]]
"""(module path, call of its outermost repeated ancestor counted from 1) -> (stage, invocation)."""


class Placer:
    """(module, call) -> (stage, invocation), by the call of the outermost repeated ancestor."""

    def __init__(self, locate: Locate, calls: Iterable[ModuleCall]) -> None:
        self.locate = locate
        self.parents = {(c.module, c.call): c.parent for c in calls}
        self.totals: dict[str, int] = {}
        for module, call in self.parents:
            self.totals[module] = max(call, self.totals.get(module, 0))
        self.known: dict[tuple[str, int], tuple[str, str]] = {}

    def __call__(self, module: str, call: int) -> tuple[str, str]:
        key = (module, call)
        if key not in self.known:
            repeated, here = 1, key if key in self.parents else None
            while here is not None:
                if self.totals[here[0]] > 1:
                    repeated = here[1]
                here = self.parents[here]
            self.known[key] = self.locate(module, repeated)
        return self.known[key]
