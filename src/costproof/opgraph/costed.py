"""Cost the operators of a graph in order, and evaluate symbolic graphs at concrete sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import sympy

from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate
from costproof.ledger.node import UnknownOp, exact_sum
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.regions import Part, R, Region, RegionTraffic, parts, region_traffic, resolve
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import source_kind
from costproof.opgraph.rules.registry import UnknownCost, cost_of, transforms


@dataclass(frozen=True, eq=False)
class Costed:
    """A graph after all transforms, with what each of its operators costs.

    Operators keep their place in the order of execution; accounting alone gives it up.
    """

    graph: Graph
    costs: tuple[OpCost | UnknownCost, ...]
    """One for each operator of the graph, in order of execution."""

    @cached_property
    def roots(self) -> Mapping[str, Value]:
        """Id of every view and cast -> the tensor that was really made."""
        return resolve(self.graph.ops, self.costs)

    @cached_property
    def traffic(self) -> Mapping[Region, RegionTraffic]:
        """What crosses the border of every region."""
        return self.crossing([(op.module, op.call) for op in self.graph.ops])

    @cached_property
    def alone(self) -> Mapping[int, RegionTraffic]:
        """What every operator moves where each runs on its own, by its place in the order of execution."""
        return self.crossing(range(len(self.graph.ops)))

    def crossing(self, regions: Sequence[R]) -> dict[R, RegionTraffic]:
        """What crosses the border of every region, where each operator is in one of these."""
        return region_traffic(self.graph, self.costs, self.roots, self._parts, regions)

    @cached_property
    def _parts(self) -> Mapping[str, Part]:
        return parts(self.graph.ops, self.costs)


def costed(graph: Graph) -> Costed:
    """Bring a graph into the form that rules know, and cost every operator."""
    for transform in transforms():
        graph = transform(graph)
    return Costed(graph, tuple(cost_of(op) for op in graph.ops))


def sized(graph: Graph, values: Mapping[str, int]) -> Graph:
    """The graph with numbers for the symbols in the shapes and other arguments of its operators."""

    def number(size: Size) -> int:
        return size if isinstance(size, int) else evaluate(size, values)

    def plain(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [plain(a) for a in argument]
        try:
            return number(argument) if isinstance(argument, sympy.Expr) else argument
        except BadInput:
            return argument  # a scale such as 1/sqrt(n), which is not a size

    @cache
    def value(old: Value) -> Value:
        return replace(old, shape=tuple(map(number, old.shape)))

    def call(op: OpCall) -> OpCall:
        attrs = {name: plain(argument) for name, argument in op.attrs.items()}
        return replace(op.reading(value), outputs=tuple(map(value, op.outputs)), attrs=attrs)

    return replace(graph, ops=tuple(map(call, graph.ops)))


def bounded(unknown: Iterable[UnknownOp], costed: Costed, values: Mapping[str, int], runs: int = 1) -> list[UnknownOp]:
    """Unknown operators of a graph with symbols, with bounds at the given sizes.

    Args:
        runs: how often the graph runs at no larger sizes.
    """
    at_most: dict[tuple[str, str], list[int | None]] = {}
    for op in _unknown(costed, values):
        cost = cost_of(op)
        # What is unknown in symbols may be known at sizes.
        bound = cost.bound if isinstance(cost, UnknownCost) else cost.flops
        at_most.setdefault((source_kind(op.name), op.module), []).append(None if bound is None else int(bound))
    found = []
    for u in unknown:
        bound = exact_sum(at_most.get((u.op, u.module), [None]))
        found.append(replace(u, count=runs * u.count, bound_flops=None if bound is None else runs * bound))
    return found


def known_at_sizes(costed: Costed, values: Mapping[str, int]) -> tuple[str, ...]:
    """Operators that have no cost in symbols and one at the given sizes, such as a transform of a given length."""
    known = (source_kind(op.name) for op in _unknown(costed, values) if isinstance(cost_of(op), OpCost))
    return tuple(dict.fromkeys(known))


def _unknown(costed: Costed, values: Mapping[str, int]) -> tuple[OpCall, ...]:
    """The calls without a cost, at the given sizes."""
    graph = costed.graph
    ops = tuple(op for op, cost in zip(graph.ops, costed.costs, strict=True) if isinstance(cost, UnknownCost))
    return sized(replace(graph, ops=ops), values).ops
