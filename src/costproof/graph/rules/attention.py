"""Fused attention: two products over the full S_q x S_k, and the softmax between them.

Headline: 2 * B*H_q*S_q*S_k * (D_qk + D_v). Vector: per score 1 for the scale, 5 for the softmax, 1 for
the addition of a mask tensor. A causal flag removes nothing: the convention is ``full``.
"""

from __future__ import annotations

from typing import Final

from costproof.graph.graph import OpCall, Size, Value
from costproof.graph.rules.cost import OpCost, Uncountable
from costproof.graph.rules.operands import optional, result, tensor
from costproof.graph.rules.registry import operator_rule
from costproof.graph.rules.sizes import prod, total

_STARTS: Final = ("cum_seq_q", "cu_seqlens_q", "cu_seqlens_k", "cum_seq_k")
"""Where packed sequences begin."""


def attention_cost(scores: Size, qk_dim: Size, v_dim: Size, *, masked: bool) -> OpCost:
    """Cost of attention over ``scores`` = B*H_q*S_q*S_k pairs."""
    return OpCost(
        flops=prod((2, scores, total((qk_dim, v_dim)))),
        vector=prod((7 if masked else 6, scores)),
        role="matmul",
    )


def _qkv(op: OpCall) -> tuple[Value, Value, Value]:
    return tensor(op, "query", 0), tensor(op, "key", 1), tensor(op, "value", 2)


@operator_rule(
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def sdpa(op: OpCall) -> OpCost:
    """(.., H_q, S_q, D) x (.., H_kv, S_k, D) x (.., H_kv, S_k, D_v); H_kv may divide H_q."""
    query, key, value = _qkv(op)
    masked = _mask(op) is not None
    leading = result(op).shape[:-2]
    return attention_cost(
        prod((*leading, query.shape[-2], key.shape[-2])), query.shape[-1], value.shape[-1], masked=masked
    )


@operator_rule("_flash_attention_forward", "_efficient_attention_forward")
def sequence_first(op: OpCall) -> OpCost:
    """(B, S, H, D) layout. Packed sequences of unequal length are not counted: their lengths are data."""
    query, key, value = _qkv(op)
    if len(query.shape) != 4 or not op.names.keys().isdisjoint(_STARTS):
        raise Uncountable("packed sequences: the lengths are in a tensor's values")
    batch, queries, heads, dim = query.shape
    masked = op.names.get("bias") is not None
    return attention_cost(prod((batch, heads, queries, key.shape[1])), dim, value.shape[-1], masked=masked)


def _mask(op: OpCall) -> Value | None:
    if op.names:
        return next((op.names[n] for n in ("attn_mask", "attn_bias", "mask") if n in op.names), None)
    return optional(op, "attn_mask", 3)
