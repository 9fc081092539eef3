"""Which share of a stack of expert matrices one token passes, read off the graph.

A router sends every token to k of E experts. The graph shows k without any value being known: the
rows that meet the stack are tokens x k, and the tokens are in the tensor that enters the module. So
of a stack of E matrices with n elements, k n / E are active per token.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from costproof.tracers.graph import Graph, Size
from costproof.tracers.regions import RegionTraffic, region_traffic, resolve
from costproof.tracers.rules.cost import OpCost
from costproof.tracers.rules.registry import cost_of
from costproof.tracers.rules.sizes import numel


def active_elements(graph: Graph) -> dict[str, int | None]:
    """Parameter -> elements that one token passes, for every stack that is read by rows.

    ``None`` where the graph does not show it: no activation of the stack's width enters the module,
    or the share is no whole number of elements.
    """
    costs = [cost_of(op) for op in graph.ops]
    roots = resolve(graph.ops, costs)
    traffic = region_traffic(graph, costs)
    found: dict[str, int | None] = {}
    for op, cost in zip(graph.ops, costs, strict=True):
        for read in cost.partial if isinstance(cost, OpCost) else ():
            stack = roots.get(read.value.id, read.value)
            if stack.origin != "param" or read.rows is None:
                continue
            tokens = _tokens(traffic.get((op.module, op.call)), stack.shape[1:])
            found[stack.name] = None if tokens is None else _share(numel(stack), read.rows, tokens, stack.shape[0])
    return found


def _tokens(traffic: RegionTraffic | None, widths: Iterable[Size]) -> Size | None:
    """Rows of the narrowest activation of one of these widths that enters the module."""
    wide = set(widths)
    rows = [
        sympy.cancel(sympy.sympify(numel(t.value)) / t.value.shape[-1])
        for t in (traffic.inputs if traffic else ())
        if t.value.shape and t.value.shape[-1] in wide
    ]
    at_one = [r.subs(dict.fromkeys(r.free_symbols, 1)) for r in rows]
    return rows[at_one.index(min(at_one))] if rows else None


def _share(elements: Size, rows: Size, tokens: Size, experts: Size) -> int | None:
    share = sympy.cancel(sympy.sympify(elements) * rows / (tokens * experts))
    return int(share) if share.is_Integer else None
