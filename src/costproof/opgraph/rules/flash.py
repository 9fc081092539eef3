"""FlashAttention's operators: the package's own, those of transformers' kernel hub, those of vLLM.

Headline: 2 * B*H_q*S_q*S_k * (D_qk + D_v), as every attention here, whatever the causal flag and the window say, which
make some of it skippable;
D is the model's head dimension, not the padded one that the kernel gets (:mod:`costproof.opgraph.rules.padding`).
Vector: as fused attention, 6 per score; a soft cap 3 more (divide, tanh, multiply), ALiBi 2 (multiply, add).

Variable lengths are packed: rows of all sequences one after another, and where each begins in a tensor.
Which pairs meet depends on those values. With one sequence it is all of them; with several the pairs are at
most ``sequences * max_seqlen_q * max_seqlen_k``, which is exact for equal lengths and a bound for others.

Argument names are those of the schemas: flash_attn 2.8 ``flash_attn_interface``, the bindings of
``kernels-community/flash-attn2`` and ``vllm-flash-attn3``, vLLM's ``_vllm_fa2_C`` and ``_vllm_fa3_C``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.attention import attention_cost, seen_at_end
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.operands import attr, optional, tensor
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod, total

# A kernel of the hub has the hash of its build in its namespace; ``canonical`` takes it off.
_TWO: Final = ("flash_attn", "flash_attn2")
_THREE: Final = ("flash_attn3", "vllm_flash_attn3", "flash_attn_3", "_vllm_fa3_C")

FIXED: Final = (
    "flash_attn._flash_attn_forward", "flash_attn_func", "flash_attn.flash_attn_func", *(f"{n}.fwd" for n in _TWO),
)  # fmt: skip
PACKED: Final = (
    "flash_attn._flash_attn_varlen_forward", "flash_attn_varlen_func", "flash_attn.flash_attn_varlen_func",
    *(f"{n}.varlen_fwd" for n in (*_TWO, "_vllm_fa2_C")),
)  # fmt: skip
CACHED: Final = (
    "flash_attn_with_kvcache", "flash_attn.flash_attn_with_kvcache",
    *(f"{n}.fwd_kvcache" for n in (*_TWO, "_vllm_fa2_C")),
)  # fmt: skip
GENERAL: Final = (*(f"{n}.fwd" for n in _THREE), "flash_attn_3._flash_attn_forward")
BACKWARD: Final = (
    "flash_attn._flash_attn_backward", "flash_attn._flash_attn_varlen_backward",
    *(f"{n}.{name}" for n in _TWO for name in ("bwd", "varlen_bwd")), *(f"{n}.bwd" for n in _THREE),
)  # fmt: skip

_FORWARD: Final = frozenset(map(canonical, (*FIXED, *PACKED, *CACHED, *GENERAL)))


def is_flash(name: str) -> bool:
    """Whether an operator, in any variant of its name, is a forward of FlashAttention."""
    return canonical(name) in _FORWARD


@operator_rule(*FIXED)
def fixed_length(op: OpCall) -> OpCost:
    """(B, S_q, H_q, D) with (B, S_k, H_kv, D): 2*B*H_q*S_q*S_k*(D + D_v)."""
    query, key, value = tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2)
    return _fixed(op, query, key.shape[1], value)


@operator_rule(*PACKED)
def variable_length(op: OpCall) -> OpCost:
    """(rows, H, D) packed: exact for one sequence, and for sequences that all have the greatest length."""
    return _packed(op, tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2))


@operator_rule(*CACHED)
def with_cache(op: OpCall) -> OpCost:
    """(B, S_q, H_q, D) with a cache (B, S_cache, H_kv, D); S_k is what the cache holds, new keys included.

    The filled length is a tensor's value or a number; the whole cache is the bound.
    """
    query = tensor(op, "q", 0)
    keys = _named(op, "k_cache", "kcache") or tensor(op, "k_cache", 1)
    values = _named(op, "v_cache", "vcache") or tensor(op, "v_cache", 2)
    if len(keys.shape) != 4 or _named(op, "block_table"):
        raise Uncountable("a paged cache: the lengths are in a tensor's values")
    whole = _fixed(op, query, keys.shape[1], values)
    if _named(op, "rotary_cos"):
        raise Uncountable("the kernel rotates queries and keys too, which has no rule", whole.flops)
    if _named(op, "cache_seqlens", "seqlens_k"):
        raise Uncountable("the filled length of the cache is in a tensor's values", whole.flops)
    filled = _whole(attr(op, "cache_seqlens"))
    if filled is None:
        return whole
    new = _named(op, "k")
    return _fixed(op, query, filled + (new.shape[1] if new is not None else 0), values)


@operator_rule(*GENERAL)
def third_version(op: OpCall) -> OpCost:
    """One operator for all: (B, S, H, D), packed rows, or a cache; a second query q_v adds 2*B*H_q*S_q*S_k*D_v."""
    if not op.names:
        raise Uncountable("an operator with many optional tensors, and none of them named")
    query, key, value = tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2)
    if _named(op, "page_table", "kv_batch_idx"):
        raise Uncountable("a paged cache: the lengths are in a tensor's values")
    # A second query (multi-head latent attention) meets the values: as if the first were wider by theirs.
    extra = value.shape[-1] if _named(op, "q_v", "qv") else 0
    packed = _named(op, "cu_seqlens_q") is not None
    cost = _packed(op, query, key, value, extra) if packed else _fixed(op, query, key.shape[1], value, extra)
    if _named(op, "k_new", "seqused_q", "seqused_k", "leftpad_k"):
        raise Uncountable("the filled length of the cache is in a tensor's values", cost.flops)
    return cost


@operator_rule(*BACKWARD)
def backward(op: OpCall) -> OpCost:
    """Out of scope: inference is what is counted. The bound is five products where the forward has two."""
    query, key = _named(op, "q"), _named(op, "k")
    if query is None or key is None or len(query.shape) != 4:
        raise Uncountable("a backward pass: only inference is counted")
    batch, queries, heads, dim = query.shape
    raise Uncountable(
        "a backward pass: only inference is counted", prod((10, batch, heads, queries, key.shape[1], dim))
    )


def _fixed(op: OpCall, query: Value, keys: Size, value: Value, extra: Size = 0) -> OpCost:
    """Sequences of one length; ``extra`` widens the queries."""
    if len(query.shape) != 4:
        raise Uncountable(f"flash attention on a tensor of rank {len(query.shape)}")
    batch, queries, heads, dim = query.shape
    return _cost(op, prod((batch, heads)), queries, keys, total((dim, extra)), value.shape[-1])


def _packed(op: OpCall, query: Value, key: Value, value: Value, extra: Size = 0) -> OpCost:
    """Sequences of several lengths in one row after another."""
    starts = optional(op, "cu_seqlens_q", 3)
    if len(query.shape) != 3 or starts is None:
        raise Uncountable("packed sequences without the tensor that says where they begin")
    heads, dim = query.shape[1], total((query.shape[2], extra))
    elsewhere = _named(op, "seqused_k", "leftpad_k", "block_table")
    if starts.shape[0] == 2 and elsewhere is None:
        return _cost(op, heads, query.shape[0], key.shape[0], dim, value.shape[-1])
    sequences = total((starts.shape[0], -1))
    longest, longest_key = _whole(attr(op, "max_seqlen_q")), _whole(attr(op, "max_seqlen_k"))
    if longest is None or longest_key is None:
        raise Uncountable("packed sequences: the lengths are in a tensor's values")
    bound = _cost(op, prod((sequences, heads)), longest, longest_key, dim, value.shape[-1])
    # As many rows as equal sequences of the greatest length have: then they are equal, and the bound is reached.
    rows = prod((sequences, longest)), prod((sequences, longest_key))
    if elsewhere is None and rows == (query.shape[0], key.shape[0]):
        return bound
    raise Uncountable("packed sequences of unequal lengths: the lengths are in a tensor's values", bound.flops)


def _cost(op: OpCall, rows: Size, queries: Size, keys: Size, qk_dim: Size, v_dim: Size) -> OpCost:
    """Attention of so many heads of sequences, with what the kernel does to each score on the way."""
    scores = prod((rows, queries, keys))
    plain = attention_cost(scores, qk_dim, v_dim, masked=False)
    seen = seen_at_end(queries, keys, *window_of(op))
    hidden = scores if seen is None else total((scores, prod((-1, rows, seen))))
    plain = replace(plain, skippable=prod((2, hidden, total((qk_dim, v_dim)))))
    more = 3 * bool(attr(op, "softcap")) + 2 * (_named(op, "alibi_slopes") is not None)
    return replace(plain, vector=total((plain.vector, prod((more, scores))))) if more else plain


def window_of(op: OpCall) -> tuple[int | None, int | None]:
    """Return how far a query sees before and behind the key that it is aligned with; ``None``: without a limit."""
    both = attr(op, "window_size", default=(-1, -1))
    both = both if isinstance(both, list | tuple) and len(both) == 2 else (-1, -1)
    given = [attr(op, f"window_size_{side}", default=size) for side, size in zip(("left", "right"), both, strict=True)]
    left, right = (None if not isinstance(size, int) or size < 0 else size for size in given)
    return left, 0 if attr(op, "causal", "is_causal", default=False) else right


def _named(op: OpCall, *names: str) -> Value | None:
    """The first tensor argument of these names; some schemas write an underscore after them."""
    return next((op.names[n] for name in names for n in (name, f"{name}_") if n in op.names), None)


def _whole(value: Any) -> Size | None:
    """A length that is given as a number, or as a size of the export."""
    return None if value is None or isinstance(value, bool | float | str) else value
