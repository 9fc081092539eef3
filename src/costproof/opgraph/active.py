"""Which share of a stack of expert matrices one token passes, read off the graph.

A router sends every token to k of E experts. The graph shows k without any value being known: the
rows that meet the stack are tokens x k, and the tokens are in the tensor that enters the module. So
of a stack of E matrices with n elements, k n / E are active per token. What is looked up beside a stack of
E matrices in a table of E rows, such as biases of experts, has the stack's share; so has a row that is a view of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from costproof.opgraph.costed import Costed
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.regions import Region
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.sizes import numel, total


def active_elements(costed: Costed) -> dict[str, int | None]:
    """Parameter -> elements that one token passes, for every stack that is read by rows.

    ``None`` where the graph does not show it: no activation of the stack's width enters the module, or several of
    other lengths do, or the share is not a whole number of elements, or more than all.
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
    # What comes back in, from the activation function for each expert, is made after the module's first operator.
    traffic = costed.traffic if reads else {}
    made = {out.id: i for i, op in enumerate(costed.graph.ops) for out in op.outputs} if reads else {}
    begins: dict[Region, int] = {}
    for i, op in enumerate(costed.graph.ops if reads else ()):
        begins.setdefault((op.module, op.call), i)
    found: dict[str, int | None] = {}
    shares: dict[tuple[str, int, Size], tuple[Size, Size]] = {}
    for (module, call, name), (stack, rows) in reads.items():
        entering = [t.value for t in traffic[module, call].inputs if made.get(t.value.id, -1) < begins[module, call]]
        tokens = _tokens(entering, stack.shape[1:])
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


def _tokens(entering: Iterable[Value], widths: Iterable[Size]) -> Size | None:
    """Rows of the activations of one of these widths; ``None`` where they have not the same."""
    wide = set(widths)
    rows = {
        sympy.cancel(sympy.sympify(numel(value)) / value.shape[-1])
        for value in entering
        if value.shape and value.shape[-1] in wide
    }
    return rows.pop() if len(rows) == 1 else None


def _share(elements: Size, rows: Size, tokens: Size, experts: Size) -> int | None:
    """What one token passes of a stack; ``None`` where it would be more than all of it: the tokens are others."""
    share = sympy.cancel(sympy.sympify(elements) * rows / (tokens * experts))
    whole = share.is_Integer and not bool(sympy.sympify(elements) < share)
    return int(share) if whole else None
