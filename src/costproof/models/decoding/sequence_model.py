"""Turn the attention of a decoder into that of one rank of several that share a sequence, for an export.

A rank is given its own positions and attends their queries to the keys of all ranks, which come to it in a ring, or it
exchanges heads for positions (Ulysses). In a decode step every rank has the query of the new token and attends it to
the part of the cache that it keeps; the partial results are weighted and added, or, if that part is some heads,
gathered. Linear layers and norms are not touched. The dynamic source has code of its own (``SharedSequence`` of
:mod:`costproof.patches.exchanges`). Importing this imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from costproof.models.decoding.decoder import SHARED, Decoder

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]]
"""Attention function of (queries, keys, values, causal, scale) that returns results [B, H, n, D_v] and log-sum-exp
values [B, H, n, 1]."""


def fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's cuDNN attention, which returns log-sum-exp values for any widths and groups of heads."""
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention
    found = attend(query, key, value, None, True, 0.0, causal, False, scale=scale)
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class OwnPositions:
    """The position of a rank among the ranks that share a sequence, and how they divide it."""

    layout: str
    """Plan of context parallelism: ``ring``, ``zigzag`` or ``ulysses``."""
    ranks: int
    rank: int
    kernel: Kernel = fused
    of_heads: str = ""
    """Attention, ``sdpa`` or ``eager``, of Ulysses ranks that cache heads; empty for ranks that cache positions."""

    @property
    def by_heads(self) -> bool:
        """Return whether the rank attends to all positions with some heads, and caches these heads."""
        return self.layout == "ulysses" and self.of_heads != ""

    def share(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's part of a tensor along a dimension."""
        size = whole.shape[dim] // self.ranks
        return whole.narrow(dim, self.rank * size, size)

    @property
    def group(self) -> str:
        """Return the name of the process group in exported collectives."""
        return f"cp:{self.ranks}"

    @property
    def appends(self) -> bool:
        """Return whether the rank caches the new tokens of decode steps, as the last rank does."""
        return self.rank == self.ranks - 1


def share_sequence(model: Any, decoder: Decoder, own: OwnPositions) -> None:
    """Patch every attention module of a decoder to run as one rank of context parallelism."""
    for path in decoder.attention_paths(model):
        part: Any = model.get_submodule(path)
        part._own_positions = own
        part.config._attn_implementation = SHARED
        base = type(part)
        # The name stays, since it is that of the module in a ledger.
        part.__class__ = type(base.__name__, (base,), {"forward": _forward_of(base), "__module__": base.__module__})


def _forward_of(base: Any) -> Callable[..., Any]:
    """Return a forward for one rank, in which only the rank that owns new tokens appends them to its cache.

    The forward passes ``in_step``, whether the cache already holds a prompt.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values")
        in_step = cache is not None and cache.layers[self.layer_idx].is_initialized
        if cache is not None and self._own_positions.by_heads:
            kwargs["past_key_values"] = _OfHeads(cache, self._own_positions, in_step)
        elif in_step and not self._own_positions.appends:
            kwargs["past_key_values"] = _ReadOnly(cache)
        return base.forward(self, *args, **kwargs, in_step=in_step, own=self._own_positions)

    return forward


class _ReadOnly:
    """Cache whose ``update`` adds nothing and returns its contents."""

    def __init__(self, cache: Any) -> None:
        self.layers, self.get_seq_length = cache.layers, cache.get_seq_length

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *more: Any, **kwargs: Any) -> Any:
        """Return the cached keys and values of a layer, without the new ones."""
        return self.layers[layer].keys, self.layers[layer].values


class _OfHeads:
    """Cache of this rank's heads at all positions; its input has all heads at this rank's positions or a new token."""

    def __init__(self, cache: Any, own: OwnPositions, in_step: bool) -> None:
        self.layers, self._cache, self._own, self._in_step = cache.layers, cache, own, in_step

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *more: Any, **kwargs: Any) -> Any:
        """Return the keys and values of this rank's heads that a call attends to."""
        own = [self._own.share(x, 1) if self._in_step else _of_own_heads(self._own, x) for x in (keys, values)]
        return self._cache.update(*own, layer, *more, **kwargs)


def attend_own(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    own: OwnPositions,
    scaling: float | None = None,
    in_step: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention [B, n, H, D_v] of this rank's positions, or of a new token, as an attention kernel does."""
    if own.by_heads:
        found = _with_own_heads(own, module, query, key, value, attention_mask, in_step, scaling=scaling, **kwargs)
        return found, None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if in_step:
        found = _in_step(own, query, key, value, scale)
    elif own.layout == "ulysses":
        found = _by_heads(own, query, key, value, scale)
    else:
        found = _in_ring(own, query, key, value, scale)
    return found.transpose(1, 2).contiguous(), None


def _passed_on(own: OwnPositions, sent: torch.Tensor, number: int) -> torch.Tensor:
    """Send a tensor to the next rank, and return the tensor received from the previous one."""
    ops, n = torch.ops._c10d_functional, own.ranks
    going = ops.isend(sent, (own.rank + 1) % n, number, own.group)
    coming = ops.irecv(torch.empty_like(sent), (own.rank - 1) % n, number, own.group)
    ops.wait_tensor(going)
    got: torch.Tensor = ops.wait_tensor(coming)
    return got


def _in_ring(
    own: OwnPositions, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend to the parts of keys of all ranks up to this rank's positions, one part after another.

    Contiguous parts after this rank's are hidden and only passed on. Of two zigzag parts, r and 2 n - 1 - r, all
    queries see the first parts of earlier ranks, and the second half of the queries sees both parts of later ranks.
    """
    zigzag, length = own.layout == "zigzag", query.shape[2]
    half = length // 2
    key, value = key.contiguous(), value.contiguous()
    keys, values = key, value
    result, logs = own.kernel(query, key, value, True, scale)
    kind, result = result.dtype, result.float()
    for step in range(1, own.ranks):
        packed = _passed_on(own, torch.cat([keys.flatten(), values.flatten()]), step)
        keys = packed[: key.numel()].view(key.shape)
        values = packed[key.numel() :].view(value.shape)
        earlier = step <= own.rank
        if not earlier and not zigzag:
            continue
        if not zigzag:
            part, more = own.kernel(query, keys, values, False, scale)
        elif earlier:
            part, more = own.kernel(query, keys[:, :, :half], values[:, :, :half], False, scale)
        else:
            part, more = own.kernel(query[:, :, half:], keys, values, False, scale)
        if zigzag and not earlier:
            behind, of = _merged(result[:, :, half:], logs[:, :, half:], part, more)
            result = torch.cat([result[:, :, :half], behind], 2)
            logs = torch.cat([logs[:, :, :half], of], 2)
        else:
            result, logs = _merged(result, logs, part, more)
    return result.to(kind)


def _merged(
    result: torch.Tensor, logs: torch.Tensor, part: torch.Tensor, more: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge results [.., n, D_v] and log-sum-exp values [.., n, 1] over two parts of the keys, in float32.

    The weight of the new part is e^more / (e^logs + e^more), a sigmoid, and the logarithm of the sum is
    logs - log sigmoid(logs - more).
    """
    weight = torch.sigmoid(more - logs)
    joined = result - weight * (result - part.float())
    return joined, logs - torch.nn.functional.logsigmoid(logs - more)


def _by_heads(
    own: OwnPositions, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Exchange all heads at some positions for some heads at all positions, attend, and exchange the results back."""
    of_heads, keys, values = (_of_own_heads(own, x) for x in (query, key, value))
    result, _ = own.kernel(of_heads, keys, values, True, scale)
    got = _traded(own, torch.cat(torch.split(result, query.shape[2], 2)))
    return torch.cat(torch.split(got, query.shape[0]), 1)


def _of_own_heads(own: OwnPositions, whole: torch.Tensor) -> torch.Tensor:
    """Return this rank's heads at all positions, given all heads at its own positions [B, heads, n, width]."""
    got = _traded(own, torch.cat(torch.split(whole, whole.shape[1] // own.ranks, 1)))
    return torch.cat(torch.split(got, whole.shape[0]), 2)


def _with_own_heads(
    own: OwnPositions,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    in_step: bool,
    **more: Any,
) -> torch.Tensor:
    """Attend to all positions with this rank's heads by transformers' attention; exchange or gather the results."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = sys.modules[type(module).__module__].eager_attention_forward
    attend = eager if own.of_heads == "eager" else ALL_ATTENTION_FUNCTIONS[own.of_heads]
    part = SimpleNamespace(num_key_value_groups=module.num_key_value_groups, is_causal=True, training=False)
    if hasattr(module, "sinks"):
        part.sinks = own.share(module.sinks, 0)
    query = own.share(query, 1) if in_step else _of_own_heads(own, query)
    result, _ = attend(part, query, key, value, mask, **more)
    if in_step:
        ops = torch.ops._c10d_functional
        got = ops.wait_tensor(ops.all_gather_into_tensor(result.contiguous(), own.ranks, own.group))
    else:
        got = _traded(own, torch.cat(torch.split(result, result.shape[1] // own.ranks, 1)))
    return torch.cat(torch.split(got, query.shape[0]), 2)


def _traded(own: OwnPositions, parts: torch.Tensor) -> torch.Tensor:
    """Exchange equal parts [ranks rows, ..] with all ranks; return the received parts in the order of ranks."""
    ops, rows = torch.ops._c10d_functional, [parts.shape[0] // own.ranks] * own.ranks
    got: torch.Tensor = ops.wait_tensor(ops.all_to_all_single(parts, rows, rows, own.group))
    return got


def _in_step(
    own: OwnPositions, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend to the cached part with the new token's query, weight the result, and add the results of all ranks."""
    ops = torch.ops._c10d_functional
    result, logs = own.kernel(query, key, value, False, scale)
    every = ops.wait_tensor(ops.all_gather_into_tensor(logs, own.ranks, own.group))
    total = torch.logsumexp(every.view(own.ranks, *logs.shape), 0)
    weighted = (result * torch.exp(logs - total)).to(result.dtype)
    summed: torch.Tensor = ops.wait_tensor(ops.all_reduce(weighted, "sum", own.group))
    return summed
