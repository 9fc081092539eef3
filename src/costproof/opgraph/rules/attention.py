"""Fused attention: two products over the full S_q x S_k, and the softmax between them.

Headline: 2 * B*H_q*S_q*S_k * (D_qk + D_v). Vector: per score 1 for the scale, 5 for the softmax, 1 for
the addition of a mask tensor. A causal flag removes nothing: the convention is ``full``. What it hides is skippable: of
sdpa, query i sees the keys up to i; of kernels that align the last query with the last key (FlashAttention), those
up to i + S_k - S_q, and with a window those in it. What a mask tensor hides is data: maybe all of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.operands import attr, optional, result, tensor
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod, total

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
    cost = attention_cost(
        prod((*leading, query.shape[-2], key.shape[-2])), query.shape[-1], value.shape[-1], masked=masked
    )
    return replace(cost, skippable=_hidden(op, cost, masked=masked))


def _hidden(op: OpCall, cost: OpCost, *, masked: bool) -> Size:
    """Return the FLOPs of the scores that a mask may hide, or that a flag hides."""
    if masked or attr(op, "is_causal", default=False) in (False, 0):
        return cost.flops if masked else 0
    query, key, value = _qkv(op)
    queries, keys, width = query.shape[-2], key.shape[-2], total((query.shape[-1], value.shape[-1]))
    hidden = total((prod((queries, keys)), prod((-1, seen_from_start(queries, keys)))))
    return prod((2, *result(op).shape[:-2], hidden, width))


def seen_from_start(queries: Size, keys: Size) -> Size:
    """Return the pairs of a query i and a key up to i: m (m + 1) / 2 + (queries - m) keys, m = min(queries, keys)."""
    import sympy

    q, k = sympy.sympify(queries), sympy.sympify(keys)
    m = q if q == k else sympy.Min(q, k)
    pairs = sympy.expand(m * (m + 1) / 2 + (q - m) * k)
    return int(pairs) if pairs.is_Integer else pairs


@lru_cache(maxsize=4096)
def seen_at_end(queries: Size, keys: Size, left: int | None, right: int | None) -> Size | None:
    """Return the pairs of a query i and a key from i + d - left to i + d + right, d = keys - queries.

    ``None`` where symbols leave that open.

    Args:
        left: ``None``: no limit; as is ``right``.
    """
    if left is None and right is None:
        return prod((queries, keys))
    if isinstance(queries, int) and isinstance(keys, int):
        d = keys - queries
        ends = ((0 if left is None else max(0, i + d - left), keys if right is None else min(keys, i + d + right + 1))
                for i in range(queries))  # fmt: skip
        return sum(max(0, end - start) for start, end in ends)
    if left is None and right == 0:
        import sympy

        q, k = sympy.sympify(queries), sympy.sympify(keys)
        if (k - q).is_nonnegative:
            return sympy.expand(q * (k - q) + q * (q + 1) / 2)
    return None


@operator_rule("_flash_attention_forward", "_efficient_attention_forward")
def sequence_first(op: OpCall) -> OpCost:
    """(B, S, H, D) layout. Packed sequences of unequal length are not counted: their lengths are data."""
    query, key, value = _qkv(op)
    if len(query.shape) != 4 or not op.names.keys().isdisjoint(_STARTS):
        raise Uncountable("packed sequences: the lengths are in a tensor's values")
    batch, queries, heads, dim = query.shape
    masked = op.names.get("bias") is not None
    cost = attention_cost(prod((batch, heads, queries, key.shape[1])), dim, value.shape[-1], masked=masked)
    # Flags of several kernels, whose masks begin at one end or the other.
    hides = masked or any(
        attr(op, name) not in (None, False, 0) for name in ("is_causal", "causal", "custom_mask_type")
    )
    windows = (attr(op, name) for name in ("window_size", "window_size_left", "window_size_right"))
    hides |= any(w is not None and w != -1 for w in windows)
    return replace(cost, skippable=cost.flops) if hides else cost


def _mask(op: OpCall) -> Value | None:
    if op.names:
        return next((op.names[n] for n in ("attn_mask", "attn_bias", "mask") if n in op.names), None)
    return optional(op, "attn_mask", 3)
