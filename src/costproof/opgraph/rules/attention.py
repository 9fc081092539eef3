"""Count the costs of fused attention: two products over the full S_q x S_k and the softmax between them.

Headline: 2 * B*H_q*S_q*S_k * (D_qk + D_v). Vector FLOPs per score: 1 for the scale, 5 for the softmax, 1 for the
addition of a mask tensor, 3 for a soft cap (divide, tanh, multiply), 2 for ALiBi (multiply, add).

Masks remove nothing from the headline: the convention is ``full``. The grid of scores states the mask, from which
:mod:`costproof.opgraph.kept` counts the scores that are kept: with a causal sdpa, query i sees the keys up to i;
kernels that align the last query with the last key (FlashAttention) let it see the keys up to i + S_k - S_q, and with a
window only those in the window.

FlashAttention's operators are those of its package, of transformers' kernel hub and of vLLM; argument names are those
of the schemas (flash_attn 2.8 ``flash_attn_interface``, the bindings of ``kernels-community/flash-attn2`` and
``vllm-flash-attn3``, vLLM's ``_vllm_fa2_C`` and ``_vllm_fa3_C``). Sequences of variable length are packed: the rows of
all sequences one after another, with the start of each in a tensor. Which pairs meet depends on the values of that
tensor, which :func:`costproof.opgraph.mask_rows.with_lengths` writes into the call where they are known: the headline
is the sum of S_q x S_k over the sequences. Without values, one sequence and sequences of equal lengths are exact, and
others have an upper bound: a query meets at most ``max_seqlen_k`` keys, and a key at most ``max_seqlen_q`` queries.

Padding: FlashAttention's package pads heads with zeros to a multiple of 8, and transformers pads values to the width of
the queries, before the operator is called. Columns of zeros add nothing to a product, so D is the model's head
dimension, as in every other implementation: :func:`unpadded` makes attention read the tensors before padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, ScoreGrid, Uncountable, attr, optional, result, tensor
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import graph_transform, operator_rule
from costproof.opgraph.rules.sizes import prod, total

SDPA: Final = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_triton_scaled_dot_attention",
)
NESTED: Final = "costproof.nested_attention"
"""Operator on packed rows that :mod:`costproof.patches.nested` runs for attention of nested tensors."""
_SEQUENCE_STARTS: Final = ("cum_seq_q", "cu_seqlens_q", "cu_seq_q")
"""Names of the argument with the first row of each packed query sequence, followed by the end of the last sequence."""
_KEY_STARTS: Final = ("cum_seq_k", "cu_seqlens_k", "cu_seq_k")
_KEYS_USED: Final = ("seqused_k", "seqlen_k")
"""Names of the argument with the number of cached keys that each sequence uses."""
LENGTHS: Final = "lengths"
"""Key in ``OpCall.attrs`` of the lengths of packed sequences, as (queries, keys) of each."""
_MOST_NAMED: Final = 4
_UNKNOWN_LENGTHS: Final = "packed sequences: the lengths are in a tensor's values"


def attention_cost(grid: ScoreGrid) -> OpCost:
    """Return the cost of attention over all scores, including those that a mask hides."""
    scores = grid.pairs if grid.packed else prod((grid.grids, grid.queries, grid.keys))
    vector = prod((6 if grid.mask is None else 7, scores))
    return OpCost(prod((2, scores, grid.width)), vector, role="matmul", attention=grid)


def _qkv(op: OpCall) -> tuple[Value, Value, Value]:
    return tensor(op, "query", 0), tensor(op, "key", 1), tensor(op, "value", 2)


@operator_rule(*SDPA)
def sdpa(op: OpCall) -> OpCost:
    """Count sdpa on (.., H_q, S_q, D) x (.., H_kv, S_k, D) x (.., H_kv, S_k, D_v); H_kv may divide H_q."""
    query, key, value = _qkv(op)
    if misfit := mask_misfit(op):
        raise Uncountable(misfit)
    causal = attr(op, "is_causal", default=False) not in (False, 0)
    return attention_cost(
        ScoreGrid(
            prod(result(op).shape[:-2]),
            query.shape[-2],
            key.shape[-2],
            total((query.shape[-1], value.shape[-1])),
            right=0 if causal else None,
            at_end=False,
            mask=_mask(op),
        )
    )


def mask_misfit(op: OpCall, *, at_sizes: bool = False) -> str:
    """Return why a mask makes a call fail: its sizes are neither 1 nor those of the scores; empty if the mask fits.

    The call fails on a device; torch does not check meta tensors.

    Args:
        at_sizes: whether to report symbolic sizes that differ, although some values of the symbols may make them equal.
    """
    mask = _mask(op)
    if mask is None:
        return ""
    query, key, _ = _qkv(op)
    scores = (query.shape[-2], key.shape[-2])
    differ = [(m, s) for m, s in zip(mask.shape[-2:], scores, strict=False) if m not in (1, s)]
    if not any(at_sizes or (isinstance(m, int) and isinstance(s, int)) for m, s in differ):
        return ""
    shape, wanted = (" x ".join(map(str, sizes)) for sizes in (mask.shape[-2:], scores))
    return f"a mask of {shape} does not fit scores of {wanted}: the call fails where it is run"


@operator_rule(
    "_flash_attention_forward",
    "_flash_attention_forward_no_dropout_inplace",
    "_efficient_attention_forward",
    "_cudnn_attention_forward",
    "torch_attn._varlen_attn",
    "torch_attn._varlen_attn_out",
    NESTED,
)
def kernel_of_torch(op: OpCall) -> OpCost:
    """Count attention in torch's fused kernels on (B, S, H, D), for cuDNN (B, H, S, D), or on packed rows (T, H, D).

    Packed rows need their lengths, unless there is one sequence, or all have the maximum length.
    """
    query, key, value = _qkv(op)
    starts, paged = _named(op, *_SEQUENCE_STARTS), _named(op, "block_table") is not None
    if starts is None and (paged or _named(op, *_KEYS_USED)):
        raise Uncountable("the filled length of a cache is in a tensor's values")
    heads_first = canonical(op.name) == canonical("_cudnn_attention_forward") and starts is None
    heads, dim = query.shape[-3 if heads_first else -2], query.shape[-1]
    queries, keys = (t.shape[-2 if heads_first else -3] for t in (query, key))
    if starts is None and len(query.shape) != 4:
        raise Uncountable("packed sequences without the tensor that says where they begin")
    grids = heads if starts is not None else prod((query.shape[0], heads))
    grid = ScoreGrid(grids, queries, keys, total((dim, value.shape[-1])), mask=_named(op, "bias", "attn_bias"))
    return attention_cost(_aligned(op, grid if starts is None else _packed_grid(op, starts, grid, paged=paged)))


_FLASH: Final = ("_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace", "torch_attn._varlen_attn",
                 "torch_attn._varlen_attn_out")  # fmt: skip


def _aligned(op: OpCall, grid: ScoreGrid) -> ScoreGrid:
    """Return the scores with the mask that the flags in a call of a fused torch kernel describe.

    FlashAttention aligns the last query with the last key. The efficient kernel states the aligned end in
    ``custom_mask_type``: 1 the first, 2 the last. Other kernels and windows are known only where both ends are.
    """
    if canonical(op.name) in map(canonical, _FLASH):
        left, right = window_of(op)
        return replace(grid, left=left, right=right)
    kind = attr(op, "custom_mask_type", default=0)
    flagged = any(attr(op, name) not in (None, False, 0) for name in ("is_causal", "causal")) or kind not in (0, None)
    windowed = attr(op, "window_size") not in (None, -1)
    equal = all(q == k for q, k in grid.packed) if grid.packed else grid.queries == grid.keys
    known = not windowed and (not flagged or kind in (1, 2) or equal)
    return replace(grid, right=0 if flagged else None, at_end=kind != 1, known=known)


def length_tensors(op: OpCall) -> tuple[Value, Value | None, Value | None] | None:
    """Return the tensors with the lengths of packed sequences in a call; ``None`` if its rows are not packed.

    Returns:
        The starts of the sequences of queries, those of keys (default: the same), and how many keys are used of each.
    """
    starts = _named(op, *_SEQUENCE_STARTS)
    if starts is None:
        return None
    return starts, _named(op, *_KEY_STARTS), _named(op, *_KEYS_USED)


def _packed_grid(op: OpCall, starts: Value, grid: ScoreGrid, *, paged: bool) -> ScoreGrid:
    """Return the scores of packed sequences, as (queries, keys) of each sequence where their lengths are known.

    Args:
        grid: heads, rows of queries and rows of keys.
        paged: whether keys are in blocks that sequences may share, whose number bounds nothing.

    Raises:
        Uncountable: the lengths are not known, or do not fit.
    """
    sequences = total((starts.shape[0], -1))
    longest, longest_key = (_length(attr(op, f"max_{x}", f"max_seqlen_{x}")) for x in "qk")
    used = paged or _named(op, *_KEYS_USED, "leftpad_k") is not None
    lengths = attr(op, LENGTHS)
    if lengths is not None and _named(op, "leftpad_k") is None:
        rows = (grid.queries, None if paged else grid.keys)
        if misfit := _misfit(lengths, rows, (longest, longest_key)):
            raise Uncountable(misfit)
        return replace(grid, packed=tuple((q, k) for q, k in lengths))
    if not used and sequences == 1:
        return grid
    known = longest is not None and longest_key is not None
    if not used and known:
        full = prod((sequences, longest)), prod((sequences, longest_key))
        if full == (grid.queries, grid.keys):
            return replace(grid, grids=prod((grid.grids, sequences)), queries=longest, keys=longest_key)
    bounds = [
        prod(sizes)
        for sizes in (
            (sequences, longest, longest_key), (grid.queries, longest_key),
            *(() if paged else ((grid.keys, longest), (grid.queries, grid.keys))),
        ) if None not in sizes
    ]  # fmt: skip
    numbers = [size for size in bounds if isinstance(size, int)]
    least = min(numbers) if len(numbers) == len(bounds) and bounds else bounds[0] if bounds else None
    raise Uncountable(_UNKNOWN_LENGTHS, None if least is None else prod((2, grid.grids, least, grid.width)))


def _misfit(lengths: Sequence[Sequence[int]], rows: Sequence[Size | None], longest: Sequence[Size | None]) -> str:
    """Return why the lengths of packed sequences contradict the call's other arguments; empty if they do not."""
    for at, what in enumerate(("queries", "keys")):
        each = [pair[at] for pair in lengths]
        there, most = rows[at], longest[at]
        if any(n < 0 for n in each) or (isinstance(there, int) and sum(each) > there):
            return f"packed sequences of {', '.join(map(str, each[:_MOST_NAMED]))} {what} do not fit {there} rows"
        if isinstance(most, int) and max(each, default=0) > most:
            return f"a packed sequence of {max(each)} {what} is longer than the maximum of {most} that the call states"
    return ""


FLEX: Final = "costproof.flex_attention"
"""Operator that :mod:`costproof.patches.flex_attention` runs for torch's ``flex_attention``."""
UNKNOWN_COUNT: Final = -1
"""Value of ``kept`` and ``score_flops`` in a call where the count is unknown."""
EVERY_PAIR: Final = -2
"""Value of ``kept`` in a call without a mask."""


@operator_rule(FLEX)
def flexible(op: OpCall) -> OpCost:
    """Count flex_attention on (B, H_q, S_q, D) x (B, H_kv, S_k, D) x (B, H_kv, S_k, D_v), including masked pairs.

    The call states how many pairs its mask function leaves, and the vector FLOPs that its score function adds to each.
    """
    query, key, value = _qkv(op)
    kept, more = op.attrs["kept"], op.attrs["score_flops"]
    grid = ScoreGrid(
        prod(query.shape[:-2]), query.shape[-2], key.shape[-2], total((query.shape[-1], value.shape[-1])),
        known=kept != UNKNOWN_COUNT,
    )  # fmt: skip
    cost = attention_cost(replace(grid, kept=kept) if kept >= 0 else grid)
    if more == UNKNOWN_COUNT:
        raise Uncountable("what a score function computes is not known", cost.flops)
    return replace(cost, vector=total((cost.vector, prod((more, grid.pairs)))))


_GRADIENTS: Final = (
    *(f"_scaled_dot_product_{name}_attention_backward" for name in ("flash", "efficient", "cudnn")),
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward",
    *(f"_{name}_attention_backward" for name in ("flash", "efficient", "cudnn")),
)


@operator_rule(*_GRADIENTS)
def gradients(op: OpCall) -> OpCost:
    """Report gradients of attention as unknown, since only inference is counted.

    Bound: QKᵀ and four gradients, 2 * B*H_q*S_q*S_k * (3 D + 2 D_v).
    """
    query, key, value = _named(op, "query"), _named(op, "key"), _named(op, "value")
    why = "a backward pass: only inference is counted"
    if query is None or key is None or value is None or len(query.shape) != 4 or _named(op, "cu_seqlens_q"):
        raise Uncountable(why)
    heads_first = "scaled_dot_product" in op.name or "cudnn" in op.name
    scores = prod((*query.shape[:-1], key.shape[-2 if heads_first else -3]))
    width = total((prod((3, query.shape[-1])), prod((2, value.shape[-1]))))
    raise Uncountable(why, prod((2, scores, width)))


def _mask(op: OpCall) -> Value | None:
    if op.names:
        return next((op.names[n] for n in ("attn_mask", "attn_bias", "mask") if n in op.names), None)
    return optional(op, "attn_mask", 3)


# The namespace of a hub kernel contains the hash of its build; ``canonical`` removes it.
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
    """Return whether an operator, in any variant of its name, is a forward pass of FlashAttention."""
    return canonical(name) in _FORWARD


@operator_rule(*FIXED)
def fixed_length(op: OpCall) -> OpCost:
    """Count 2*B*H_q*S_q*S_k*(D + D_v) FLOPs for (B, S_q, H_q, D) with (B, S_k, H_kv, D)."""
    query, key, value = tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2)
    return _fixed(op, query, key.shape[1], value)


@operator_rule(*PACKED)
def variable_length(op: OpCall) -> OpCost:
    """Count attention on packed rows (rows, H, D): S_q x S_k for each sequence, whose lengths are a tensor's values."""
    return _packed(op, tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2))


@operator_rule(*CACHED)
def with_cache(op: OpCall) -> OpCost:
    """Count attention of (B, S_q, H_q, D) on a cache (B, S_cache, H_kv, D); S_k is its filled length with the new keys.

    If the filled length is a tensor, it is unknown, and the whole cache is the bound.
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
    filled = _length(attr(op, "cache_seqlens"))
    if filled is None:
        return whole
    new = _named(op, "k")
    return _fixed(op, query, filled + (new.shape[1] if new is not None else 0), values)


@operator_rule(*GENERAL)
def third_version(op: OpCall) -> OpCost:
    """Count FlashAttention 3 on (B, S, H, D), packed rows and caches; a second query q_v adds 2*B*H_q*S_q*S_k*D_v."""
    if not op.names:
        raise Uncountable("an attention operator whose optional tensors are not named in the graph")
    query, key, value = tensor(op, "q", 0), tensor(op, "k", 1), tensor(op, "v", 2)
    if _named(op, "page_table", "kv_batch_idx"):
        raise Uncountable("a paged cache: the lengths are in a tensor's values")
    # The product of a second query (multi-head latent attention) and the values widens the first product by D_v.
    extra = value.shape[-1] if _named(op, "q_v", "qv") else 0
    packed = _named(op, "cu_seqlens_q") is not None
    cost = _packed(op, query, key, value, extra) if packed else _fixed(op, query, key.shape[1], value, extra)
    settled = packed and attr(op, LENGTHS) is not None
    if _named(op, "k_new", "seqused_q", "leftpad_k", *(() if settled else ("seqused_k",))):
        raise Uncountable("the filled length of the cache is in a tensor's values", cost.flops)
    return cost


@operator_rule(*BACKWARD)
def backward(op: OpCall) -> OpCost:
    """Report gradients of FlashAttention as unknown, since only inference is counted.

    The bound is five products; the forward pass has two.
    """
    query, key = _named(op, "q"), _named(op, "k")
    if query is None or key is None or len(query.shape) != 4:
        raise Uncountable("a backward pass: only inference is counted")
    batch, queries, heads, dim = query.shape
    raise Uncountable(
        "a backward pass: only inference is counted", prod((10, batch, heads, queries, key.shape[1], dim))
    )


def _fixed(op: OpCall, query: Value, keys: Size, value: Value, extra: Size = 0) -> OpCost:
    """Return the cost of attention on sequences of equal length; ``extra`` is added to the width of a query."""
    if len(query.shape) != 4:
        raise Uncountable(f"flash attention on a tensor of rank {len(query.shape)}")
    batch, queries, heads, dim = query.shape
    return _cost(op, prod((batch, heads)), queries, keys, total((dim, extra)), value.shape[-1])


def _packed(op: OpCall, query: Value, key: Value, value: Value, extra: Size = 0) -> OpCost:
    """Return the cost of attention on packed sequences; ``extra`` is added to the width of a query."""
    starts = optional(op, "cu_seqlens_q", 3)
    if len(query.shape) != 3 or starts is None:
        raise Uncountable("packed sequences without the tensor that says where they begin")
    paged = _named(op, "block_table") is not None
    width, (left, right) = total((query.shape[2], extra, value.shape[-1])), window_of(op)
    rows = prod(key.shape[:-2])  # of a paged cache [pages, rows of a page, H_kv, D]
    grid = ScoreGrid(query.shape[1], query.shape[0], rows, width, left, right)
    return _with_more(op, _packed_grid(op, starts, grid, paged=paged))


def _cost(op: OpCall, rows: Size, queries: Size, keys: Size, qk_dim: Size, v_dim: Size) -> OpCost:
    """Return the cost of a fused kernel for ``rows`` = B*H_q score matrices, including soft cap, ALiBi and window."""
    left, right = window_of(op)
    return _with_more(op, ScoreGrid(rows, queries, keys, total((qk_dim, v_dim)), left, right))


def _with_more(op: OpCall, grid: ScoreGrid) -> OpCost:
    """Return the cost of the scores, with the soft cap and ALiBi that the call states."""
    plain = attention_cost(grid)
    more = 3 * bool(attr(op, "softcap")) + 2 * (_named(op, "alibi_slopes") is not None)
    return replace(plain, vector=total((plain.vector, prod((more, grid.pairs))))) if more else plain


def window_of(op: OpCall) -> tuple[int | None, int | None]:
    """Return how many keys a query sees before and after the key aligned with it; ``None``: no limit."""
    both = attr(op, "window_size", default=(-1, -1))
    both = both if isinstance(both, list | tuple) and len(both) == 2 else (-1, -1)
    given = [attr(op, f"window_size_{side}", default=size) for side, size in zip(("left", "right"), both, strict=True)]
    left, right = (None if not isinstance(size, int) or size < 0 else size for size in given)
    return left, 0 if attr(op, "causal", "is_causal", default=False) else right


def _named(op: OpCall, *names: str) -> Value | None:
    """Return the first tensor argument with one of these names, which some schemas write with a final underscore."""
    return next((op.names[n] for name in names for n in (name, f"{name}_") if n in op.names), None)


def _length(value: Any) -> Size | None:
    """Return a length given as a number or a symbolic size; ``None`` for other values, such as tensors."""
    return None if value is None or isinstance(value, bool | float | str) else value


@graph_transform
def unpadded(graph: Graph) -> Graph:
    """Rewrite FlashAttention calls on padded heads to read and return heads of the model's own width."""
    inner: dict[str, Value] = {}
    """Tensor before padding, by id of the padded tensor."""
    narrow: dict[str, Value] = {}
    """Attention result without the padding columns, by id of the result on padded heads."""
    ops: list[OpCall] = []
    for op in graph.ops:
        source = _padded(op)
        if source is not None:
            inner[op.outputs[0].id] = inner.get(source.id, source)
        elif inner and is_flash(op.name):
            op = _reading(op, inner)
            result = op.outputs[0]
            width = op.tensors[2].shape[-1]
            if result.shape[-1] != width:
                narrow[result.id] = replace(result, shape=(*result.shape[:-1], width))
                op = replace(op, outputs=(narrow[result.id], *op.outputs[1:]))
        elif narrow:
            op = _reading(op, narrow)
        ops.append(op)
    if not inner:
        return graph
    remaining: list[OpCall] = []
    read = {t.id for t in graph.outputs}
    for op in reversed(ops):
        if op.outputs and op.outputs[0].id in inner and op.outputs[0].id not in read:
            continue  # only attention read it, so this padding moves nothing either
        remaining.append(op)
        read |= {t.id for t in op.tensors}
    return replace(graph, ops=tuple(reversed(remaining)))


def _padded(op: OpCall) -> Value | None:
    """Return the argument of a call that only pads the end of the last dimension with zeros; ``None`` for others."""
    if canonical(op.name) not in ("pad", "constant_pad_nd") or len(op.tensors) != 1 or len(op.outputs) != 1:
        return None
    before, after = op.tensors[0], op.outputs[0]
    amounts = op.attrs.get("pad")
    zeros = not op.attrs.get("value") and op.attrs.get("mode") in (None, "constant")
    at_the_end = isinstance(amounts, list | tuple) and amounts[0] == 0
    return before if zeros and at_the_end and before.shape[:-1] == after.shape[:-1] else None


def _reading(op: OpCall, inner: dict[str, Value]) -> OpCall:
    return op.reading(lambda t: inner.get(t.id, t)) if any(t.id in inner for t in op.tensors) else op
