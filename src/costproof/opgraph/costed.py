"""Compute the cost of each operator, evaluate symbolic graphs at concrete sizes, and find data edges between modules.

For the edges, consider one call c of a module and the calls inside it. Each operator in c belongs to one of these calls
or is c's *own*. A value created in call x *reaches* call y if

- an operator in y reads it (a view or cast created in x counts as created in x), or
- an own operator of c reads it, and the result of that operator reaches y.

Then x feeds y. It makes no difference whether the path leads over c's own operators (residual additions, reshapes,
concatenations), and a skip connection is an edge like any other: in a residual stream that c maintains itself, every
block feeds all later ones. Operators that only use a tensor's shape (``zeros_like``) read nothing. A value that is
created outside c and read in y gives an edge of an outer call; every read belongs to exactly one caller, the innermost
that contains both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import takewhile
from typing import Any

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.ledger.errors import BadInput
from costproof.ledger.node import UnknownOp, exact_sum
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.regions import (
    R,
    Region,
    RegionTraffic,
    ViewPart,
    region_traffic,
    resolve_views,
    tensors_read,
    view_parts,
)
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
        """The tensor that a view or cast was made from, through all views and casts between, by the view's id."""
        return resolve_views(self.graph.ops, self.costs)

    @cached_property
    def traffic(self) -> Mapping[Region, RegionTraffic]:
        """Traffic across the boundary of a module call without its submodules, by (module, call number)."""
        return self.crossing([(op.module, op.call) for op in self.graph.ops])

    @cached_property
    def alone(self) -> Mapping[int, RegionTraffic]:
        """Traffic of each operator if it ran as a separate kernel, by index of the operator."""
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
    """Apply all graph transforms to a graph, and compute the cost of every operator."""
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
        runs: number of runs of the graph, all at these sizes or smaller ones.
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
    """Return operators with a cost unknown for symbolic sizes but known at concrete ones, such as a Fourier transform.

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
    """Return why an attention call fails at concrete sizes, if symbolic sizes leave that open; empty if none fails.

    Empty if none does.
    """
    ops = tuple(op for op in costed.graph.ops if canonical(op.name) in SDPA and mask_misfit(op, at_sizes=True))
    costs = (cost_of(op) for op in substitute_sizes(replace(costed.graph, ops=ops), values).ops) if ops else ()
    return next((cost.why for cost in costs if isinstance(cost, UnknownCost)), "")


def _unknown_calls(costed: CostedGraph, values: Mapping[str, int]) -> tuple[OpCall, ...]:
    """Return the operator calls without a known cost, with concrete sizes."""
    graph = costed.graph
    ops = tuple(op for op, cost in zip(graph.ops, costed.costs, strict=True) if isinstance(cost, UnknownCost))
    return substitute_sizes(replace(graph, ops=ops), values).ops


CallKey = tuple[str, int]
"""Module path and call number."""


def data_edges(costed: CostedGraph) -> Counter[tuple[str, str]]:
    """Count, for each pair of modules ``(a, b)``, the pairs of sibling calls in which a result of a reaches b."""
    return Counter((a[0], b[0]) for a, b in feeding_calls(costed))


def feeding_calls(costed: CostedGraph) -> set[tuple[CallKey, CallKey]]:
    """Return all pairs of module calls in which a result of the first reaches the second."""
    chain = _chains(costed.graph)
    made_in: dict[str, tuple[CallKey, ...]] = {}
    through: dict[str, frozenset[CallKey]] = {}
    """Calls that a value was computed from by operators of their common caller, by the value's id."""
    found: set[tuple[CallKey, CallKey]] = set()
    for op, cost in zip(costed.graph.ops, costed.costs, strict=True):
        here = chain((op.module, op.call))
        reached: set[CallKey] = set()
        for value in tensors_read(op, cost):
            there = made_in.get(value.id)
            if there is None:
                continue
            depth = _common(there, here)
            if depth == 0:
                continue
            if len(there) > depth:
                sources: Iterable[CallKey] = (there[depth],)
            else:
                sources = through.get(value.id, ())
            if len(here) > depth:
                found.update((source, here[depth]) for source in sources)
            else:
                reached.update(sources)
        for out in op.outputs:
            made_in[out.id] = here
            if reached:
                through[out.id] = frozenset(reached)
    return found


def _chains(graph: Graph) -> Callable[[CallKey], tuple[CallKey, ...]]:
    """Return a function from a module call to its enclosing calls, from the root to the call itself."""
    parents = {(c.module, c.call): c.parent for c in graph.calls}

    @cache
    def chain(call: CallKey) -> tuple[CallKey, ...]:
        parent = parents.get(call)
        return (call,) if parent is None else (*chain(parent), call)

    return chain


def _common(a: tuple[CallKey, ...], b: tuple[CallKey, ...]) -> int:
    """Return the length of the common prefix of two call chains."""
    return sum(1 for _ in takewhile(lambda calls: calls[0] == calls[1], zip(a, b, strict=False)))
