"""FlashAttention's operators: the real package's own ones, with fixed and variable lengths and a cache.

Headline: 2 * B*H_q*S_q*S_k * (D_qk + D_v), as every attention here, whatever the causal flag says.
Variable lengths are packed: rows of all sequences one after another, and where each begins in a tensor.
Which pairs meet depends on those values. With one sequence it is all of them; with several the pairs are at
most ``sequences * max_seqlen_q * max_seqlen_k``, which is exact for equal lengths and a bound for others.
"""

from __future__ import annotations

from typing import Any

from costproof.tracers.graph import OpCall, Size, Value
from costproof.tracers.rules.attention import attention_cost
from costproof.tracers.rules.cost import OpCost, Uncountable
from costproof.tracers.rules.operands import attr, optional, tensor
from costproof.tracers.rules.registry import operator_rule
from costproof.tracers.rules.sizes import prod


@operator_rule(
    "flash_attn._flash_attn_varlen_forward",
    "flash_attn_varlen_func",
    "flash_attn.flash_attn_varlen_func",
)
def variable_length(op: OpCall) -> OpCost:
    """(rows, H, D) packed: exact for one sequence, and for sequences that all have the greatest length."""
    query, key, value = tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2)
    starts = optional(op, "cu_seqlens_q", 3)
    if len(query.shape) != 3 or starts is None:
        raise Uncountable("packed sequences without the tensor that says where they begin")
    heads, dim = query.shape[1], query.shape[2]
    if starts.shape[0] == 2:
        pairs = prod((heads, query.shape[0], key.shape[0]))
        return attention_cost(pairs, dim, value.shape[-1], masked=False)
    sequences = starts.shape[0] - 1
    longest, longest_key = _whole(attr(op, "max_seqlen_q")), _whole(attr(op, "max_seqlen_k"))
    if longest is None or longest_key is None:
        raise Uncountable("packed sequences: the lengths are in a tensor's values")
    bound = attention_cost(prod((sequences, heads, longest, longest_key)), dim, value.shape[-1], masked=False)
    # As many rows as equal sequences of the greatest length have: then they are equal, and the bound is reached.
    if sequences * longest == query.shape[0] and sequences * longest_key == key.shape[0]:
        return bound
    raise Uncountable("packed sequences of unequal lengths: the lengths are in a tensor's values", bound.flops)


@operator_rule("flash_attn_func", "flash_attn.flash_attn_func")
def fixed_length(op: OpCall) -> OpCost:
    """(B, S_q, H_q, D) with (B, S_k, H_kv, D): 2*B*H_q*S_q*S_k*(D + D_v)."""
    query, key, value = tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2)
    return _fixed(query, key.shape[1], value)


@operator_rule("flash_attn_with_kvcache", "flash_attn.flash_attn_with_kvcache")
def with_cache(op: OpCall) -> OpCost:
    """(B, S_q, H_q, D) with a cache (B, S_cache, H_kv, D); S_k is what the cache holds, new keys included.

    The filled length is a tensor's value or a number; the whole cache is the bound.
    """
    query, keys, values = tensor(op, "q", 0), tensor(op, "k_cache", 1), tensor(op, "v_cache", 2)
    if len(keys.shape) != 4 or "block_table" in op.names:
        raise Uncountable("a paged cache: the lengths are in a tensor's values")
    whole = _fixed(query, keys.shape[1], values)
    if "cache_seqlens" in op.names:
        raise Uncountable("the filled length of the cache is in a tensor's values", whole.flops)
    filled = _whole(attr(op, "cache_seqlens"))
    if filled is None:
        return whole
    new = op.names.get("k")
    return _fixed(query, filled + (new.shape[1] if new is not None else 0), values)


def _fixed(query: Value, keys: Size, value: Value) -> OpCost:
    if len(query.shape) != 4:
        raise Uncountable(f"flash attention on a tensor of rank {len(query.shape)}")
    batch, queries, heads, dim = query.shape
    return attention_cost(prod((batch, heads, queries, keys)), dim, value.shape[-1], masked=False)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
