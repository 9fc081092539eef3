"""Loops over experts, seen as what they are: a grouped product, one matrix at a time.

``linear(rows, stack[e])`` for every expert e that received rows does the products of one grouped GEMM.
Seen as plain layers each would read a tensor of its own, the matrices read would depend on the data, and
nothing would tie them to the stack. Here the picked matrix gives way to the stack: the product is
called ``expert_linear``, and its rule counts it as a part of the grouped one.
"""

from __future__ import annotations

from dataclasses import replace

from costproof.graph.graph import Graph, OpCall, Value
from costproof.graph.rules.names import canonical

EXPERT_LINEAR = "expert_linear"


def looped(graph: Graph) -> Graph:
    """The graph with every product of rows and one matrix picked from a stack parameter named for what it is.

    A pick is an index of one integer into a parameter of three dimensions (experts, out, in). If anything
    but a product reads what was picked, it stays as it is.
    """
    picks: dict[str, Value] = {}
    for op in graph.ops:
        stack = _stack(op)
        if stack is not None:
            picks[op.outputs[0].id] = stack
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
