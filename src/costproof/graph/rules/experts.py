"""Grouped products: many small matrix products with one call, as mixture-of-experts layers use them."""

from __future__ import annotations

from costproof.graph.graph import OpCall, Size, Value
from costproof.graph.rules.cost import OpCost, PartialRead, Uncountable
from costproof.graph.rules.operands import tensor
from costproof.graph.rules.registry import operator_rule
from costproof.graph.rules.sizes import prod, smaller


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


@operator_rule("expert_linear")
def expert_linear(op: OpCall) -> OpCost:
    """One group of a looped grouped product, (M, K) x (E, N, K) at one expert: 2*M*K*N."""
    rows, stack = op.tensors[0], op.tensors[1]
    return OpCost(
        flops=prod((2, *rows.shape, stack.shape[-2])), role="matmul", partial=(matrices_read(stack, rows.shape[0]),)
    )


@operator_rule("transformers.grouped_mm_fallback")
def grouped_mm_fallback(op: OpCall) -> OpCost:
    """A loop over the groups of (M, K) x (G, K, N): 2*M*K*N, as the fused kernel."""
    rows, stack = tensor(op, "input", 0), tensor(op, "weight", 1)
    return OpCost(
        flops=prod((2, *rows.shape, stack.shape[-1])),
        role="matmul",
        partial=(matrices_read(stack, rows.shape[0]),),
    )
