"""Which share of a stack of expert matrices one token passes, read off the graph.

A router sends every token to k of E experts. The graph shows k without any value being known: the
rows that meet the stack are tokens x k, and the tokens are in the tensor that enters the module. So
of a stack of E matrices with n elements, k n / E are active per token. What is looked up beside a stack of
E matrices in a table of E rows, such as biases of experts, has the stack's share; so has a row that is a view of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from costproof.graph.costed import Costed
from costproof.graph.graph import OpCall, Size, Value
from costproof.graph.regions import RegionTraffic
from costproof.graph.rules.cost import OpCost
from costproof.graph.rules.sizes import numel, total


def active_elements(costed: Costed) -> dict[str, int | None]:
    """Parameter -> elements that one token passes, for every stack that is read by rows.

    ``None`` where the graph does not show it: no activation of the stack's width enters the module,
    or the share is not a whole number of elements.
    """
    # A loop over experts reads the stack in several operators: its rows are those of all of them.
    reads: dict[tuple[str, int, str], tuple[Value, list[Size]]] = {}
    tables: dict[tuple[str, int, str], Value] = {}
    for op, cost in zip(costed.graph.ops, costed.costs, strict=True):
        for read in cost.partial if isinstance(cost, OpCost) else ():
            stack = costed.roots.get(read.value.id, read.value)
            if stack.origin == "param" and read.rows is not None:
                # In the form that meets the rows: the parameter may hold the matrices in one.
                reads.setdefault((op.module, op.call, stack.name), (read.value, []))[1].append(read.rows)
            elif stack.origin == "param":
                tables[op.module, op.call, stack.name] = stack
        if isinstance(cost, OpCost) and cost.role == "alias" and (row := _row_of(op)) is not None:
            tables[op.module, op.call, row.name] = row
    found: dict[str, int | None] = {}
    shares: dict[tuple[str, int, Size], tuple[Size, Size]] = {}
    for (module, call, name), (stack, rows) in reads.items():
        tokens = _tokens(costed.traffic.get((module, call)), stack.shape[1:], rows)
        found[name] = None if tokens is None else _share(numel(stack), total(rows), tokens, stack.shape[0])
        if tokens is not None:
            shares[module, call, stack.shape[0]] = (total(rows), tokens)
    for (module, call, name), table in tables.items():
        if (share := shares.get((module, call, table.shape[0]))) is not None:
            found[name] = _share(numel(table), *share, table.shape[0])
    return found


def _row_of(op: OpCall) -> Value | None:
    """The parameter of which a call shows one row."""
    table = op.tensors[0] if op.tensors and op.outputs else None
    if table is None or table.origin != "param" or not table.shape:
        return None
    return table if op.outputs[0].shape == table.shape[1:] else None


def _tokens(traffic: RegionTraffic | None, widths: Iterable[Size], parts: list[Size]) -> Size | None:
    """Rows of the shortest activation of one of these widths that enters the module.

    A loop's own parts come back in from the activation function, one for each expert; they are not the tokens.
    """
    wide = set(widths)
    rows = [
        sympy.cancel(sympy.sympify(numel(t.value)) / t.value.shape[-1])
        for t in (traffic.inputs if traffic else ())
        if t.value.shape and t.value.shape[-1] in wide
    ]
    others = list(rows)
    for part in parts:
        if part in others:
            others.remove(part)
    rows = others or rows
    at_one = [r.subs(dict.fromkeys(r.free_symbols, 1)) for r in rows]
    return rows[at_one.index(min(at_one))] if rows else None


def _share(elements: Size, rows: Size, tokens: Size, experts: Size) -> int | None:
    share = sympy.cancel(sympy.sympify(elements) * rows / (tokens * experts))
    return int(share) if share.is_Integer else None
