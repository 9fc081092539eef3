"""Thin modules around a decoder that run its prefill and one decode step; they add no operators.

Importing this module imports torch.
"""

from __future__ import annotations

import torch
from torch import nn

from costproof.models.decoding.decoder import Decoder

CacheTensors = list[tuple[torch.Tensor, ...]]


class PrefillModule(nn.Module):
    """Runs the whole model on token ids, or on embeddings that include image features; a cache may be given."""

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
        )
        return result.logits, self.decoder.cache_tensors(result.past_key_values)


class StepModule(nn.Module):
    """Runs one decode step on a cache with the given keys and values."""

    def __init__(self, part: nn.Module, decoder: Decoder) -> None:
        super().__init__()
        self.part, self.decoder = part, decoder

    def forward(
        self,
        ids: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        mask: torch.Tensor | None = None,
        window_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, CacheTensors]:
        cache = self.decoder.filled_cache(self.part, list(zip(keys, values, strict=True)))
        masks = self.decoder.mask((mask, window_mask))
        result = self.part(input_ids=ids, attention_mask=masks, past_key_values=cache, use_cache=True)
        return result.logits, self.decoder.cache_tensors(cache)
