"""Grouped products: many small matrix products with one call, as mixture-of-experts layers use them.

A loop over experts does the same products one matrix at a time: ``linear(rows, stack[e])`` for every expert e that
received rows. Seen as plain layers each would read a tensor of its own, the matrices read would depend on the data,
and nothing would tie them to the stack. So the picked matrix gives way to the stack: the product is called
``expert_linear``, and its rule counts it as a part of the grouped one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.graph.graph import Graph, OpCall, Size, Value
from costproof.graph.rules.cost import OpCost, PartialRead, Uncountable
from costproof.graph.rules.names import canonical
from costproof.graph.rules.operands import tensor
from costproof.graph.rules.registry import graph_transform, operator_rule
from costproof.graph.rules.sizes import prod, smaller

EXPERT_LINEAR: Final = "expert_linear"


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
    return OpCost(flops=prod((2, *rows, b.shape[-1])), role="matmul", partial=partial)


@operator_rule(EXPERT_LINEAR)
def expert_linear(op: OpCall) -> OpCost:
    """One group of a looped grouped product, (M, K) x (E, N, K) at one expert: 2*M*K*N."""
    rows, stack = op.tensors[0], op.tensors[1]
    return _by_rows(rows, stack, stack.shape[-2])


@operator_rule("transformers.grouped_mm_fallback")
def grouped_mm_fallback(op: OpCall) -> OpCost:
    """A loop over the groups of (M, K) x (G, K, N): 2*M*K*N, as the fused kernel."""
    rows, stack = tensor(op, "input", 0), tensor(op, "weight", 1)
    return _by_rows(rows, stack, stack.shape[-1])


def _by_rows(rows: Value, stack: Value, width: Size) -> OpCost:
    """Every row meets one matrix of the stack, which makes ``width`` numbers of it."""
    read = (matrices_read(stack, rows.shape[0]),)
    return OpCost(flops=prod((2, *rows.shape, width)), role="matmul", partial=read)


@graph_transform
def looped(graph: Graph) -> Graph:
    """The graph with every product of rows and one matrix picked from a stack parameter named for what it is.

    A pick is an index of one integer into a parameter of three dimensions (experts, out, in). If anything
    but a product reads what was picked, it stays as it is.
    """
    picks = {op.outputs[0].id: stack for op in graph.ops if (stack := _stack(op)) is not None}
    if not picks:
        return graph
    for op in graph.ops:
        for place, value in enumerate(op.tensors):
            if value.id in picks and not (canonical(op.name) == "linear" and place == 1):
                del picks[value.id]
    ops = (
        replace(op, name=EXPERT_LINEAR, tensors=(op.tensors[0], picks[op.tensors[1].id], *op.tensors[2:]), names={})
        if len(op.tensors) > 1 and op.tensors[1].id in picks
        else op
        for op in graph.ops
        if not (op.outputs and op.outputs[0].id in picks)
    )
    return replace(graph, ops=tuple(ops))


def _stack(op: OpCall) -> Value | None:
    if canonical(op.name) not in ("getitem", "select", "index") or len(op.outputs) != 1:
        return None
    stack = next((t for t in op.tensors if t.origin == "param" and len(t.shape) == 3), None)
    return stack if stack is not None and op.outputs[0].shape == stack.shape[1:] else None
