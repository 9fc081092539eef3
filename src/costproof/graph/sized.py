"""A graph with numbers for its symbols, and what its unknown operators may cost at most at these sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from costproof.graph.costed import Costed
from costproof.graph.graph import Graph, Size, Value
from costproof.graph.rules.names import source_kind
from costproof.graph.rules.registry import UnknownCost, cost_of
from costproof.ledger.evaluate import evaluate
from costproof.ledger.node import UnknownOp, exact_sum


def sized(graph: Graph, values: Mapping[str, int]) -> Graph:
    """The graph with numbers for the symbols in the shapes of its operators."""

    def number(size: Size) -> int:
        return size if isinstance(size, int) else evaluate(size, values)

    @cache
    def value(old: Value) -> Value:
        return replace(old, shape=tuple(number(s) for s in old.shape))

    ops = (replace(op.reading(value), outputs=tuple(map(value, op.outputs))) for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def bounded(unknown: Iterable[UnknownOp], costed: Costed, values: Mapping[str, int], runs: int = 1) -> list[UnknownOp]:
    """Unknown operators of a graph with symbols, with bounds at the given sizes.

    Args:
        runs: how often the graph runs at no larger sizes.
    """
    graph = costed.graph
    ops = tuple(op for op, cost in zip(graph.ops, costed.costs, strict=True) if isinstance(cost, UnknownCost))
    at_most: dict[tuple[str, str], list[int | None]] = {}
    for op in sized(replace(graph, ops=ops), values).ops:
        cost = cost_of(op)
        # What is unknown in symbols may be known at sizes.
        bound = cost.bound if isinstance(cost, UnknownCost) else cost.flops
        at_most.setdefault((source_kind(op.name), op.module), []).append(None if bound is None else int(bound))
    found = []
    for u in unknown:
        bound = exact_sum(at_most.get((u.op, u.module), [None]))
        found.append(replace(u, count=runs * u.count, bound_flops=None if bound is None else runs * bound))
    return found
