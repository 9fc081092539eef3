"""Wrapper modules for parts of an encoder-decoder; they add no operators. Imports torch and transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from costproof.models.decoding.decoder import Past, fill_layer
from costproof.models.generic.export_wrappers import cache_tensors, signature, tensors


@dataclass
class Handed(BaseModelOutput):  # type: ignore[misc]  # transformers has no types
    """Encoder output passed to a decoder; every attribute that was not set, such as a mask, reads as ``None``."""

    pooler_output: torch.Tensor | None = None
    """Output that decoders with some image encoders read instead of the last hidden state."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Encode(nn.Module):
    """Runs the encoder of a model and returns the first ``count`` tensors of its result."""

    def __init__(self, part: nn.Module, count: int) -> None:
        super().__init__()
        self.part, self.count = part, count

    def called(self, args: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the first ``count`` tensors that the encoder returns for these arguments."""
        return tensors(self.part.get_encoder()(**args))[: self.count]  # type: ignore[operator]


def encode(part: nn.Module, names: tuple[str, ...], count: int) -> nn.Module:
    """Return an :class:`Encode` whose ``forward`` has arguments with these names."""

    def forward(self: Encode, **args: torch.Tensor) -> list[torch.Tensor]:
        return self.called(args)

    forward.__signature__ = signature(names)  # type: ignore[attr-defined]
    made: nn.Module = type("Encode", (Encode,), {"forward": forward})(part, count)
    return made


class FirstToken(nn.Module):
    """Runs the decoder on its first token, with encoder outputs passed under the argument names ``names``."""

    def __init__(self, part: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.part, self.names = part, names

    def forward(
        self, hidden: list[torch.Tensor], decoder_input_ids: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        handed = Handed(**dict(zip(self.names, hidden, strict=True)))
        result = self.part(encoder_outputs=handed, decoder_input_ids=decoder_input_ids, use_cache=True)
        return tensors(result), cache_tensors(result)


class CrossStep(nn.Module):
    """Runs one decode step with cross-attention.

    It returns results with the cross-attention cache, which stays alive for later steps, and the self-attention cache,
    one token longer.
    """

    def __init__(self, part: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.part, self.names = part, names

    def forward(
        self,
        hidden: list[torch.Tensor],
        decoder_input_ids: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        cross_keys: list[torch.Tensor],
        cross_values: list[torch.Tensor],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        own, cross = (list(zip(k, v, strict=True)) for k, v in ((keys, values), (cross_keys, cross_values)))
        result = self.part(
            encoder_outputs=Handed(**dict(zip(self.names, hidden, strict=True))),
            decoder_input_ids=decoder_input_ids,
            past_key_values=two_caches(own, cross),
            use_cache=True,
        )
        layers = result.past_key_values.self_attention_cache.layers
        longer = [t for layer in layers for t in (layer.keys, layer.values)]
        return [*tensors(result), *cross_keys, *cross_values], longer


def two_caches(own: Past, cross: Past) -> EncoderDecoderCache:
    """Return an ``EncoderDecoderCache`` filled with these self-attention and cross-attention keys and values."""
    halves = []
    for past in (own, cross):
        half = DynamicCache()
        for keys, values in past:
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            fill_layer(layer, keys, values)
            half.layers.append(layer)
        halves.append(half)
    return EncoderDecoderCache(*halves)
