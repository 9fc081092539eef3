"""Grouped products: many small matrix products with one call, as mixture-of-experts layers use them.

A loop over experts does the same products one matrix at a time: ``linear(rows, stack[e])`` for every expert e that
received rows. Seen as plain layers each would read a tensor of its own, the matrices read would depend on the data,
and nothing would tie them to the stack. So where numbers decide which rows meet which matrix the pick is called
``expert_matrix`` and reads a part of the stack, for the rows that meet it; the product is called ``expert_linear``,
and is a part of the grouped one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from costproof.graph.graph import Graph, OpCall, Size, Value
from costproof.graph.rules.cost import OpCost, PartialRead, Uncountable
from costproof.graph.rules.matmul import mac
from costproof.graph.rules.names import canonical
from costproof.graph.rules.operands import out_elements, tensor
from costproof.graph.rules.registry import UnknownCost, cost_of, graph_transform, operator_rule
from costproof.graph.rules.sizes import numel, prod, smaller, total

EXPERT_LINEAR: Final = "expert_linear"
EXPERT_MATRIX: Final = "expert_matrix"
_ROWS: Final = "rows"
"""Option of a pick: how many rows meet the matrix."""
_PRODUCTS: Final = frozenset({"linear", "matmul", "mm"})
_DECIDING: Final = frozenset({"argsort", "nonzero", "nonzero_numpy", "sort", "topk", "where"})
"""Give integers that numbers decide, be these integers too; so does what makes integers of floating-point numbers."""
_CHOOSING: Final = frozenset({"getitem", "index", "index_select"})


def matrices_read(stack: Value, rows: Size) -> PartialRead:
    """Reading a stack (E, ..) for ``rows`` rows touches at most min(E, rows) of its matrices."""
    experts = stack.shape[0]
    return PartialRead(stack, prod((smaller(experts, rows), *stack.shape[1:])), distinct=True, rows=rows)


@operator_rule("_grouped_mm", "_scaled_grouped_mm")
def grouped_mm(op: OpCall) -> OpCost:
    """2 * elements of the first operand * N: every row meets one group's matrix only.

    (M, K) x (G, K, N), rows grouped: 2*M*K*N. (G, M, K) x (G, K, N): 2*G*M*K*N. (M, K) x (K, N), K grouped:
    2*M*K*N. (G, M, K) x (K, N), columns grouped: 2*M*K*N.
    """
    a, b = tensor(op, "mat_a", 0), tensor(op, "mat_b", 1)
    ranks = (len(a.shape), len(b.shape))
    partial: tuple[PartialRead, ...] = ()
    if ranks == (2, 3):
        partial = (matrices_read(b, a.shape[0]),)
    elif ranks == (3, 2):
        partial = (matrices_read(a, b.shape[-1]),)
    elif ranks not in ((2, 2), (3, 3)):
        raise Uncountable(f"a grouped product of ranks {ranks[0]} and {ranks[1]}")
    rows = a.shape[-2:] if ranks == (3, 2) else a.shape
    return OpCost(flops=prod((mac(op), *rows, b.shape[-1])), role="matmul", partial=partial)


@operator_rule(EXPERT_LINEAR)
def expert_linear(op: OpCall) -> OpCost:
    """One group of a looped grouped product, (M, K) x (K, N): 2*M*K*N; the pick of the matrix has read it."""
    rows, _, *bias = op.tensors
    return OpCost(flops=prod((mac(op), out_elements(op), rows.shape[-1])), role="matmul", reads=(rows, *bias))


@operator_rule(EXPERT_MATRIX)
def expert_matrix(op: OpCall) -> OpCost:
    """0 FLOP: one matrix of a stack, read for the rows that meet it."""
    return OpCost(role="lookup", partial=(matrices_read(op.tensors[0], op.attrs[_ROWS]),), aliases=op.tensors)


@operator_rule("transformers.grouped_mm_fallback")
def grouped_mm_fallback(op: OpCall) -> OpCost:
    """A loop over the groups of (M, K) x (G, K, N): 2*M*K*N, as the fused kernel."""
    rows, stack = tensor(op, "input", 0), tensor(op, "weight", 1)
    read = (matrices_read(stack, rows.shape[0]),)
    return OpCost(flops=prod((mac(op), *rows.shape, stack.shape[-1])), role="matmul", partial=read)


@graph_transform
def looped(graph: Graph) -> Graph:
    """The graph with every product of rows and one matrix picked from a stack parameter named for what it is.

    A pick is an index of one integer into a parameter, or a view of one, of three dimensions (experts, .., ..). It is
    one of a loop over experts where numbers decide what it meets: its index is a tensor, or the rows of a product were
    chosen by one that numbers decide. If anything but a product reads what was picked, or a view of it, it stays as it
    is, as does a matrix that the code picks for all rows: that of an adapter, or of a task.
    """
    routed = _routed(graph)
    views: set[str] = set()
    """Of parameters."""
    picks: dict[str, list[Size]] = {}
    """What was picked -> rows of each product that it is in."""
    picked: dict[str, str] = {}
    """A view of what was picked -> what was picked."""
    decided: set[str] = set()
    """Of what was picked, what numbers decide."""
    for op in graph.ops:
        source = op.tensors[0] if op.tensors else None
        if source is not None and (source.origin == "param" or source.id in views):
            if _picks(op):
                picks[op.outputs[0].id] = []
                picked[op.outputs[0].id] = op.outputs[0].id
                if len(op.tensors) > 1:
                    decided.add(op.outputs[0].id)
            elif _role(op) == "alias":
                views.update(out.id for out in op.outputs)
        for place, value in enumerate(op.tensors):
            one = picked.get(value.id)
            if one not in picks:
                continue
            if canonical(op.name) in _PRODUCTS and place == 1:
                picks[one].append(numel(replace(op.tensors[0], shape=op.tensors[0].shape[:-1])))
                if op.tensors[0].id in routed:
                    decided.add(one)
            elif _role(op) == "alias":
                picked.update((out.id, one) for out in op.outputs)
            elif _role(op) != "free":
                del picks[one]
    found = {one: total(rows) for one, rows in picks.items() if rows and one in decided}
    return replace(graph, ops=tuple(_named(op, found, picked) for op in graph.ops)) if found else graph


def _routed(graph: Graph) -> set[str]:
    """Rows that were chosen by integers which numbers decide, and what is computed of such rows, each by itself."""
    decided: set[str] = set()
    rows: set[str] = set()
    for op in graph.ops:
        name, role = canonical(op.name), _role(op)
        integers = [t for t in op.tensors if not t.floating]
        if (
            any(t.id in decided for t in integers)
            or name in _DECIDING
            or (role != "factory" and len(integers) < len(op.tensors))
        ):
            decided.update(out.id for out in op.outputs if not out.floating)
        chosen = name in _CHOOSING and any(t.id in decided for t in op.tensors[1:])
        # What has integers beside the rows puts them back among all tokens.
        if chosen or (not integers and any(t.id in rows for t in op.tensors)):
            rows.update(out.id for out in op.outputs if out.floating)
    return rows


def _named(op: OpCall, picks: Mapping[str, Size], picked: Mapping[str, str]) -> OpCall:
    """A pick, or a product with what was picked, by its name; any other operator as it is."""
    if op.outputs and op.outputs[0].id in picks:
        rows = picks[op.outputs[0].id]
        return replace(op, name=EXPERT_MATRIX, tensors=op.tensors[:1], attrs={_ROWS: rows}, names={})
    if len(op.tensors) > 1 and picked.get(op.tensors[1].id) in picks and canonical(op.name) in _PRODUCTS:
        return replace(op, name=EXPERT_LINEAR, names={})
    return op


def _picks(op: OpCall) -> bool:
    stack = op.tensors[0]
    if canonical(op.name) not in ("getitem", "select", "index") or len(op.outputs) != 1 or len(stack.shape) != 3:
        return False
    return op.outputs[0].shape == stack.shape[1:]


def _role(op: OpCall) -> str:
    cost = cost_of(op)
    return "" if isinstance(cost, UnknownCost) else cost.role
