"""Thin modules around a decoder that run its prefill, a decode step, or a batch of unequal rows.

They add no operators, except that the attention of rows is split and joined as a server does it: linear layers, norms
and experts run once on the tokens of all rows, packed into one sequence, and attention runs row by row, each with its
own cache. Importing this module imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import torch
from torch import nn

from costproof.ledger.workload import BatchRow, Workload
from costproof.models.decoding.decoder import PACKED, ROW_ATTENTION, Decoder, Masks, Past, text_config
from costproof.patches.exchanges import STEP

CacheTensors = list[tuple[torch.Tensor, ...]]


class PrefillModule(nn.Module):
    """Runs the whole model on token ids, or on embeddings that include image features, with an optional cache."""

    def __init__(self, part: nn.Module, decoder: Decoder, logits_to_keep: int) -> None:
        super().__init__()
        self.part, self.decoder, self.logits_to_keep = part, decoder, logits_to_keep

    def forward(
        self,
        ids: torch.Tensor | None = None,
        embeds: torch.Tensor | None = None,
        keys: list[torch.Tensor] | None = None,
        values: list[torch.Tensor] | None = None,
        mask: torch.Tensor | None = None,
        window_mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, CacheTensors]:
        past = None
        if keys is not None and values is not None:
            past = self.decoder.filled_cache(self.part, list(zip(keys, values, strict=True)))
        result = self.part(
            input_ids=ids,
            inputs_embeds=embeds,
            attention_mask=self.decoder.mask((mask, window_mask)),
            past_key_values=past,
            use_cache=True,
            logits_to_keep=self.logits_to_keep,
            **_placed(positions),
        )
        return result.logits, self.decoder.cache_tensors(result.past_key_values)


class StepModule(nn.Module):
    """Runs one decode step on a cache with the given keys and values."""

    def __init__(self, part: nn.Module, decoder: Decoder, step: int = 0) -> None:
        """Take the part that runs, and the index of the step, of those that exchange unequal numbers of pairs."""
        super().__init__()
        self.part, self.decoder, self.step = part, decoder, step

    def forward(
        self,
        ids: torch.Tensor | None = None,
        embeds: torch.Tensor | None = None,
        *,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        mask: torch.Tensor | None = None,
        window_mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, CacheTensors]:
        before = STEP.set(self.step)
        try:
            cache = self.decoder.filled_cache(self.part, list(zip(keys, values, strict=True)))
            masks = self.decoder.mask((mask, window_mask))
            result = self.part(
                input_ids=ids, inputs_embeds=embeds, attention_mask=masks, past_key_values=cache, use_cache=True,
                **_placed(positions),
            )  # fmt: skip
            return result.logits, self.decoder.cache_tensors(cache)
        finally:
            STEP.reset(before)


def _placed(positions: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return the argument ``position_ids``; empty if tokens directly follow the cached ones."""
    return {} if positions is None else {"position_ids": positions}


_LENGTH: Final = "_sliding_window_tensor"


class MasksOfRows:
    """Masks of the rows that need one, by :func:`row_name`; passed to a model in place of a single mask."""

    ndim = 4
    """Dimensions of each mask, which GPT-2 reads."""

    def __init__(self, masks: Mapping[str, torch.Tensor]) -> None:
        self.__dict__.update(masks)

    def get(self, name: str) -> torch.Tensor | None:
        """Return the mask of a row, or ``None`` if it needs none."""
        found: torch.Tensor | None = self.__dict__.get(name)
        return found


def row_name(number: int) -> str:
    """Return the name of a row: ``row0``."""
    return f"row{number}"


class RowsCache:
    """Keys and values of a batch of rows: one transformers cache per row.

    It splits the packed sequence [1, heads, S, width] into sequences [B_i, heads, S_i, width] of the rows.
    """

    current: ClassVar[RowsCache | None] = None
    """The cache that the running attention module has updated last."""

    def __init__(self, rows: Sequence[BatchRow], caches: list[Any], attention: str, decoder: Decoder) -> None:
        self.rows, self.caches, self.attention = tuple(rows), caches, attention
        self.latent, self.decoder = bool(decoder.latent), decoder

    @property
    def layers(self) -> list[list[Any]]:
        """Return the caches of all rows, layer by layer."""
        return [list(same) for same in zip(*(cache.layers for cache in self.caches), strict=True)]

    def split(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """Split a packed tensor [1, heads, S, width] into views [B_i, heads, S_i, width] of each row's new tokens."""
        found, start = [], 0
        for row in self.rows:
            own = packed.narrow(2, start, row.count * row.new)
            found.append(own.view(*_rows_of(own, row.count)).transpose(0, 1))
            start += row.count * row.new
        return found

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> Any:
        """Append new keys and values; return those of each row, or all latents packed for one projection."""
        RowsCache.current = self
        each = zip(self.caches, self.split(keys), self.split(values), strict=True)
        found = [cache.update(k, v, layer) for cache, k, v in each]
        if not self.latent:
            return [k for k, _ in found], [v for _, v in found]
        if not any(row.past for row in self.rows):
            return keys, values
        return joined([k for k, _ in found]), joined([v for _, v in found])

    def get_seq_length(self, *args: Any) -> int:
        """Return 0, since position ids are always passed explicitly."""
        return 0

    def tensors(self) -> CacheTensors:
        """Return the cache tensors of all rows, layer by layer."""
        each = [self.decoder.cache_tensors(cache) for cache in self.caches]
        return [tuple(t for tensors in same for t in tensors) for same in zip(*each, strict=True)]


def with_row_masks(builder: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a mask builder of transformers so that it passes on the masks of a batch of rows."""

    def build(*args: Any, attention_mask: Any = None, past_key_values: Any = None, **kwargs: Any) -> Any:
        if isinstance(past_key_values, RowsCache):
            return attention_mask
        return builder(*args, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs)

    return build


def _rows_of(packed: torch.Tensor, count: int) -> tuple[int, ...]:
    """Return the shape [heads, count, length / count, width] of ``count`` equal rows in [1, heads, length, width]."""
    _, heads, length, width = packed.shape
    return heads, count, length // count, width


def contexts_of(rows: Sequence[BatchRow], packed: torch.Tensor) -> list[torch.Tensor]:
    """Split a packed tensor into views [B_i, heads, C_i + S_i, width] of each row's context."""
    found, start = [], 0
    for row in rows:
        length = row.past + row.new
        own = packed.narrow(2, start, row.count * length)
        found.append(own.view(*_rows_of(own, row.count)).transpose(0, 1))
        start += row.count * length
    return found


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors [B_i, 1, n_i, width] to one packed tensor [1, 1, S, width]."""
    flat = [part.reshape(1, 1, -1, part.shape[-1]) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=2)


def attend_rows(
    module: nn.Module, query: torch.Tensor, key: Any, value: Any, attention_mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Run attention in one call per row, and concatenate the results to [1, S, heads, width]."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    cache = RowsCache.current
    assert cache is not None
    RowsCache.current = None
    modeling: Any = sys.modules[type(module).__module__]
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(cache.attention, modeling.eager_attention_forward)
    split = [x if isinstance(x, list) else contexts_of(cache.rows, x) for x in (key, value)]
    found = []
    for i, parts in enumerate(zip(cache.split(query), *split, strict=True)):
        mask = None if attention_mask is None else attention_mask.get(row_name(i))
        with unpacked(module, cache.attention):  # FlashAttention reads the name
            result, _ = attend(module, *parts, mask, **kwargs)
        found.append(result.reshape(1, -1, *result.shape[2:]))
    return found[0] if len(found) == 1 else torch.cat(found, dim=1), None


def pack(model: nn.Module, decoder: Decoder) -> None:
    """Make a decoder's attention run row by row (:func:`attend_rows`), each with its previous implementation."""
    setattr(model, ROW_ATTENTION, text_config(model)._attn_implementation)
    for path in decoder.attention_paths(model):
        part: Any = model.get_submodule(path)
        part.config._attn_implementation = PACKED


@contextmanager
def unpacked(model: nn.Module, attention: str) -> Iterator[None]:
    """Switch a packed decoder to one attention call for equal sequences while the block runs."""
    config = text_config(model)
    config._attn_implementation = attention
    try:
        yield
    finally:
        config._attn_implementation = PACKED


def rows_cache(model: nn.Module, workload: Workload, decoder: Decoder, pasts: Sequence[Past | None]) -> RowsCache:
    """Return the cache of a batch of rows.

    Args:
        pasts: keys and values of each row, ``None`` without a past.
    """
    from transformers.cache_utils import DynamicCache

    empty = text_config(model)
    caches = [DynamicCache(config=empty) if past is None else decoder.filled_cache(model, past) for past in pasts]
    device = next(model.parameters()).device
    for layer in (layer for cache, past in zip(caches, pasts, strict=True) if past is None for layer in cache.layers):
        # A layer with a window holds its length as a tensor; its first update would move it.
        if (length := getattr(layer, _LENGTH, None)) is not None:
            setattr(layer, _LENGTH, length.to(device))
    return RowsCache(workload.rows, caches, workload.attention, decoder)


def row_masks(masks: Sequence[Masks]) -> tuple[MasksOfRows | None, MasksOfRows | None]:
    """Return the masks of all rows as :class:`MasksOfRows`: one for full attention, one for windows."""
    full, seen = ({row_name(i): m for i, pair in enumerate(masks) if (m := pair[k]) is not None} for k in (0, 1))
    return MasksOfRows(full) if full else None, MasksOfRows(seen) if seen else None


class RowsModule(nn.Module):
    """Runs the whole model on a batch of unequal rows, packed into one sequence.

    Args:
        masked: for layers without and with a window, the rows that get a mask.
    """

    def __init__(self, part: nn.Module, decoder: Decoder, workload: Workload, masked: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.part, self.decoder, self.workload, self.masked = part, decoder, workload, masked

    def forward(
        self,
        ids: torch.Tensor | None = None,
        embeds: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        kept: torch.Tensor | None = None,
        keys: list[torch.Tensor] | None = None,
        values: list[torch.Tensor] | None = None,
        masks: list[torch.Tensor] | None = None,
        window_masks: list[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, CacheTensors]:
        pairs = iter(zip(keys or (), values or (), strict=True))
        layers = text_config(self.part).num_hidden_layers
        pasts = [[next(pairs) for _ in range(layers)] if row.past else None for row in self.workload.rows]
        cache = rows_cache(self.part, self.workload, self.decoder, pasts)
        full, seen = (
            MasksOfRows(dict(zip(map(row_name, rows), given, strict=True))) if given else None
            for rows, given in zip(self.masked, (masks, window_masks), strict=True)
        )
        result = self.part(
            input_ids=ids,
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask=self.decoder.mask((full, seen)),  # type: ignore[arg-type]
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=0 if kept is None else kept,
        )
        return result.logits, cache.tensors()
