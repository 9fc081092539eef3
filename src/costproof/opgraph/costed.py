"""Cost the operators of a graph in order, and evaluate symbolic graphs at concrete sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.ledger.errors import BadInput
from costproof.ledger.node import UnknownOp, exact_sum
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.regions import R, Region, RegionTraffic, ViewPart, region_traffic, resolve_views, view_parts
from costproof.opgraph.rules.attention import SDPA, mask_misfit
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical, source_kind
from costproof.opgraph.rules.registry import UnknownCost, cost_of, transforms


@dataclass(frozen=True, eq=False)
class CostedGraph:
    """A graph after all transforms, with the cost of each operator."""

    graph: Graph
    costs: tuple[OpCost | UnknownCost, ...]
    """Cost of each operator of the graph, in order of execution."""

    @cached_property
    def roots(self) -> Mapping[str, Value]:
        """Id of every view and cast -> the tensor that it is a view or cast of."""
        return resolve_views(self.graph.ops, self.costs)

    @cached_property
    def traffic(self) -> Mapping[Region, RegionTraffic]:
        """(module, call) -> the traffic across the boundary of that call's own operators."""
        return self.crossing([(op.module, op.call) for op in self.graph.ops])

    @cached_property
    def alone(self) -> Mapping[int, RegionTraffic]:
        """Index of an operator -> its traffic if every operator runs as a separate kernel."""
        return self.crossing(range(len(self.graph.ops)))

    def crossing(self, regions: Sequence[R]) -> dict[R, RegionTraffic]:
        """Return the traffic across the boundary of every region.

        Args:
            regions: the region of each operator, in order of execution.
        """
        return region_traffic(self.graph, self.costs, self.roots, self._parts, regions)

    @cached_property
    def _parts(self) -> Mapping[str, ViewPart]:
        return view_parts(self.graph.ops, self.costs)


def cost_graph(graph: Graph) -> CostedGraph:
    """Apply all transforms to a graph and cost every operator."""
    for transform in transforms():
        graph = transform(graph)
    return CostedGraph(graph, tuple(cost_of(op) for op in graph.ops))


def substitute_sizes(graph: Graph, values: Mapping[str, int]) -> Graph:
    """Return the graph with integers for the symbols in shapes and arguments."""

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


def bound_unknown(
    unknown: Iterable[UnknownOp], costed: CostedGraph, values: Mapping[str, int], runs: int = 1
) -> list[UnknownOp]:
    """Return the unknown operators of a symbolic graph, with upper bounds of their FLOPs at concrete sizes.

    Args:
        runs: number of runs of the graph, none at larger sizes.
    """
    at_most: dict[tuple[str, str], list[int | None]] = {}
    for op in _unknown_calls(costed, values):
        cost = cost_of(op)
        # A cost that is unknown in symbols may be known at concrete sizes.
        bound = cost.bound if isinstance(cost, UnknownCost) else cost.flops
        at_most.setdefault((source_kind(op.name), op.module), []).append(None if bound is None else int(bound))
    found = []
    for u in unknown:
        bound = exact_sum(at_most.get((u.op, u.module), [None]))
        found.append(replace(u, count=runs * u.count, bound_flops=None if bound is None else runs * bound))
    return found


def known_at_sizes(
    costed: CostedGraph, values: Mapping[str, int], add: Callable[[Graph], Graph] = lambda graph: graph
) -> tuple[str, ...]:
    """Return operators that are unknown in symbols but known at the given sizes, such as a Fourier transform.

    Args:
        add: returns a graph of concrete sizes with what is known about its calls at these only.
    """
    calls = _unknown_calls(costed, values)
    if not calls:
        return ()
    unknown = {op.label for op in calls}
    graph = add(substitute_sizes(costed.graph, values))
    found = (op for op in graph.ops if op.label in unknown)
    return tuple(dict.fromkeys(source_kind(op.name) for op in found if isinstance(cost_of(op), OpCost)))


def failing_at_sizes(costed: CostedGraph, values: Mapping[str, int]) -> str:
    """Return why an attention call fails at the given sizes, where the symbolic graph leaves it open.

    Empty if none does.
    """
    ops = tuple(op for op in costed.graph.ops if canonical(op.name) in SDPA and mask_misfit(op, at_sizes=True))
    costs = (cost_of(op) for op in substitute_sizes(replace(costed.graph, ops=ops), values).ops) if ops else ()
    return next((cost.why for cost in costs if isinstance(cost, UnknownCost)), "")


def _unknown_calls(costed: CostedGraph, values: Mapping[str, int]) -> tuple[OpCall, ...]:
    """Return the calls without a cost, with concrete sizes."""
    graph = costed.graph
    ops = tuple(op for op, cost in zip(graph.ops, costed.costs, strict=True) if isinstance(cost, UnknownCost))
    return substitute_sizes(replace(graph, ops=ops), values).ops
