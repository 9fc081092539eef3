"""Whole layers in one operator: what torch.nn takes for its encoder layer and its attention in inference.

They count what the same layers do operator by operator.
"""

from __future__ import annotations

from costproof.graph.graph import OpCall, Size, Value
from costproof.graph.rules.attention import attention_cost
from costproof.graph.rules.cost import OpCost, Uncountable
from costproof.graph.rules.operands import attr, optional, tensor
from costproof.graph.rules.registry import operator_rule
from costproof.graph.rules.sizes import numel, prod, total


@operator_rule("_transformer_encoder_layer_fwd")
def encoder_layer(op: OpCall) -> OpCost:
    """Attention, two norms, two residual sums, and an MLP with ReLU or GELU (erf)."""
    data, into = tensor(op, "src", 0), tensor(op, "ffn_weight_1", 9)
    rows = prod(data.shape[:-1])
    attention = _attention(op, (data, data, data), masked="mask" in op.names)
    wide = prod((rows, into.shape[0]))
    norms = prod((2, total((prod((7, numel(data))), prod((2, rows))))))
    act = prod((5 if attr(op, "use_gelu", default=False) else 1, wide))
    return OpCost(
        flops=total((attention.flops, prod((4, rows, numel(into))))),
        vector=total((attention.vector, norms, prod((2, numel(data))), act)),
        role="matmul",
    )


@operator_rule("_native_multi_head_attention")
def multi_head_attention(op: OpCall) -> OpCost:
    """Three projections, attention, the output projection; weights that are returned are averaged over heads.

    Where weights are returned the query is scaled, 1 per element of it, and a mask is part of the product, as
    torch.nn.functional.multi_head_attention_forward does it.
    """
    data = (tensor(op, "query", 0), tensor(op, "key", 1), tensor(op, "value", 2))
    if not attr(op, "need_weights", default=True):
        return _attention(op, data, masked="mask" in op.names)
    fused = _attention(op, data, masked=False)
    scores = _scores(op, data)
    averaged = scores if attr(op, "average_attn_weights", default=True) else 0
    return OpCost(flops=fused.flops, vector=total((numel(data[0]), prod((5, scores)), averaged)), role="matmul")


def _scores(op: OpCall, data: tuple[Value, Value, Value]) -> Size:
    heads = attr(op, "num_heads", "num_head")
    query, key, _ = (t.shape for t in data)
    if heads is None or len(query) != 3:
        raise Uncountable("attention without its number of heads, or without a batch")
    return prod((query[0], heads, query[1], key[1]))


def _attention(op: OpCall, data: tuple[Value, Value, Value], *, masked: bool) -> OpCost:
    """Projections of the three, attention, and the projection of its result."""
    width, heads = data[0].shape[-1], attr(op, "num_heads", "num_head")
    weight = optional(op, "proj_weight", 5)
    if weight is None or not isinstance(width, int) or not isinstance(heads, int):
        raise Uncountable("attention without the widths of its heads")
    core = attention_cost(_scores(op, data), width // heads, width // heads, masked=masked)
    projected = [prod((2, numel(t), width)) for t in (*data, data[0])]
    return OpCost(flops=total((core.flops, *projected)), vector=core.vector, role="matmul")
