"""Count the FLOPs of fused attention from the definition of each operator, in the layout that the operator takes.

torch's registry reads ``_flash_attention_forward`` and ``_efficient_attention_forward`` as (B, H, S, D), although both
take (B, S, H, D); before 2.13 it refuses grouped key and value heads; and it lacks the operators of the CPU, of cuDNN
below the dispatcher, and of other back ends. Layouts are those of ``aten/src/ATen/native/transformers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any, Final

import torch

Arguments = Mapping[str, Any]
"""Name in the operator's schema -> value of a call."""
Width = Callable[[torch.Tensor], int]
"""Returns the head dimension of a tensor, without columns of zeros that were padded."""

_HEADS_FIRST: Final = (
    "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention", "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable", "aten._scaled_dot_product_attention_math",
    "aten._scaled_dot_product_attention_math_for_mps", "aten._triton_scaled_dot_attention", "aten._cudnn_attention",
    "flex_attention",
)  # fmt: skip
"""Operators on (B, H, S, D), without the suffixes of their variants; cuDNN's lowest operator also takes packed rows."""
_SEQUENCE_FIRST: Final = ("aten._flash_attention", "aten._efficient_attention", "torch_attn._varlen_attn")
"""Operators on (B, S, H, D); packed rows are (T, H, D), or (1, T, H, D) for ``_efficient_attention``."""
_SUFFIXES: Final = ("_forward", "_backward", "_no_dropout_inplace", "_out")
_STARTS: Final = (("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k"), ("cu_seq_q", "cu_seq_k"))
"""Arguments with the first row of each packed sequence."""
_LONGEST: Final = (("max_q", "max_k"), ("max_seqlen_q", "max_seqlen_k"))
_BY_VALUES: Final = ("block_table", "seqused_k", "seqlen_k")
"""Arguments with the filled lengths of a cache."""
_LAYERS: Final = ("aten._native_multi_head_attention", "aten._triton_multi_head_attention")


class Uncounted(Exception):
    """Raised for a call whose FLOPs depend on values that are not known."""


def attention_formula(name: str) -> Callable[[Arguments, Width], int] | None:
    """Return the formula of an operator of fused attention, or ``None`` for another operator.

    Args:
        name: with its namespace, without the overload: ``aten._flash_attention_forward``.
    """
    if name in _LAYERS:
        return _layer
    if name == "aten._transformer_encoder_layer_fwd":
        return _encoder_layer
    stem = name
    for _ in _SUFFIXES:
        stem = next((stem.removesuffix(s) for s in _SUFFIXES if stem.endswith(s)), stem)
    if stem not in (*_HEADS_FIRST, *_SEQUENCE_FIRST):
        return None
    backward = "_backward" in name

    def formula(given: Arguments, width_of: Width) -> int:
        width, value_width = width_of(_tensor(given, "query")), width_of(_tensor(given, "value"))
        # QKᵀ and PV; backward QKᵀ again, and the gradients of P, V, Q and K.
        per_score = 3 * width + 2 * value_width if backward else width + value_width
        return 2 * _scores(given, stem) * per_score

    return formula


def _scores(given: Arguments, stem: str) -> int:
    """Return the number of pairs of a query and a key, over all query heads; a causal flag removes none.

    Args:
        stem: the operator without its suffixes.

    Raises:
        Uncounted: the lengths of packed sequences or of a cache are not known.
    """
    query, key = _tensor(given, "query"), _tensor(given, "key")
    if query.is_nested or any(given.get(name) is not None for name in _BY_VALUES):
        raise Uncounted("the lengths are in a tensor's values")
    starts = next(((given[q], given.get(k)) for q, k in _STARTS if given.get(q) is not None), None)
    if starts is None or (query.dim() == 4 and stem != "aten._efficient_attention"):
        return prod(query.shape[:-1]) * int(key.shape[-2 if stem in _HEADS_FIRST else -3])
    longest = next(((given.get(q), given.get(k)) for q, k in _LONGEST if q in given), (None, None))
    queries = _lengths(starts[0], int(query.shape[-3]), longest[0])
    keys = _lengths(starts[0] if starts[1] is None else starts[1], int(key.shape[-3]), longest[1])
    return int(query.shape[-2]) * sum(q * k for q, k in zip(queries, keys, strict=True))


def _tensor(given: Arguments, name: str) -> torch.Tensor:
    """Return the queries, keys or values, which some schemas call ``q``, ``k`` and ``v``."""
    found: torch.Tensor = given[name] if name in given else given[name[0]]
    return found


def _lengths(starts: torch.Tensor, rows: int, longest: int | None) -> list[int]:
    """Return the lengths of packed sequences: from the shapes if these allow one answer, else from start offsets."""
    sequences = len(starts) - 1
    if sequences == 1:
        return [rows]
    if sequences * (longest or 0) == rows:
        return [rows // sequences] * sequences
    if starts.is_meta or type(starts) is not torch.Tensor:
        raise Uncounted("the lengths are in a tensor's values")
    host = starts.cpu()
    ends = [int(host[i]) for i in range(len(host))]
    return [end - start for start, end in pairwise(ends)]


def _layer(given: Arguments, width_of: Width) -> int:
    """Return the FLOPs of a layer of attention on (B, S, E) with its projections, as one operator."""
    batch, queries, width = map(int, given["query"].shape)
    keys = int(given["key"].shape[1])
    projected = 2 * batch * width * width * (queries + 2 * keys)
    attention = 2 * batch * queries * keys * 2 * width
    return projected + attention + 2 * batch * queries * width * int(given["proj_weight"].shape[0])


def _encoder_layer(given: Arguments, width_of: Width) -> int:
    """Return the FLOPs of attention with its projections and of two linear layers after it."""
    source = given["src"]
    rows, width = prod(source.shape[:-1]), int(source.shape[-1])
    forward: int = 2 * rows * width * (int(given["ffn_weight_1"].shape[0]) + int(given["ffn_weight_2"].shape[1]))
    return _layer({"query": source, "key": source, "proj_weight": given["proj_weight"]}, width_of) + forward
