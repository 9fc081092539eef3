"""Thin modules that hand example inputs to a causal language model; they add no operators.

Imported only where a model is at hand: they need torch to be defined.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from costproof.models.causal import Causal

CacheTensors = list[tuple[torch.Tensor, ...]]


@contextmanager
def given_masks(model: nn.Module) -> Iterator[None]:
    """The model takes the mask that it is given, none included, as it does in a plain run with fused attention.

    While it is traced, transformers makes a mask of its own in any case; for the time of the block it does not.
    """
    place: Any = sys.modules[type(model).__module__]
    original = getattr(place, "create_causal_mask", None)

    def given(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return attention_mask

    try:
        if original is not None:
            place.create_causal_mask = given
        yield
    finally:
        if original is not None:
            place.create_causal_mask = original


class Prefill(nn.Module):
    """The whole model on token ids, or on embeddings made elsewhere."""

    def __init__(self, part: nn.Module, how: Causal, logits_to_keep: int) -> None:
        super().__init__()
        self.part, self.how, self.logits_to_keep = part, how, logits_to_keep

    def forward(
        self,
        ids: torch.Tensor | None = None,
        embeds: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, CacheTensors]:
        """Logits, and keys and values of every layer."""
        with given_masks(self.part):
            result = self.part(
                input_ids=ids,
                inputs_embeds=embeds,
                attention_mask=self.how.mask(mask),
                use_cache=True,
                logits_to_keep=self.logits_to_keep,
            )
        return result.logits, self.how.tensors(result.past_key_values)


class Step(nn.Module):
    """One decode step on a cache of given keys and values."""

    def __init__(self, part: nn.Module, how: Causal) -> None:
        super().__init__()
        self.part, self.how = part, how

    def forward(
        self,
        ids: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, CacheTensors]:
        """Logits, and keys and values of every layer, the new ones included."""
        cache = self.how.filled(self.part, keys, values)
        with given_masks(self.part):
            result = self.part(input_ids=ids, attention_mask=self.how.mask(mask), past_key_values=cache, use_cache=True)
        return result.logits, self.how.tensors(cache)
