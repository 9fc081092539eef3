"""Wrapper modules of a model or its encoder and decoder; they add no operators. Imports torch and transformers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from costproof.models.decoding.decoder import Past, fill_layer
from costproof.models.decoding.modules import CacheTensors
from costproof.models.generic.caches import (
    CACHES,
    OwnCache,
    Path,
    caches_of,
    copied,
    held_places,
    is_cache,
    own_tensors,
    put,
)
from costproof.models.generic.caches import states as held_states
from costproof.patches.nested import rows_of
from costproof.snapshots.copies import restored


class Forward(nn.Module):
    """Wrapper that returns the floating-point tensors of a model's result, and its cache if there is one."""

    def __init__(self, part: nn.Module, rest: Mapping[str, Any], again: Mapping[str, Any], *, cached: bool) -> None:
        super().__init__()
        self.part, self.rest, self.again, self.cached = part, dict(rest), dict(again), cached


def around(
    part: nn.Module,
    names: tuple[str, ...],
    rest: Mapping[str, Any] = {},
    again: Mapping[str, Any] = {},
    *,
    cached: bool = False,
) -> Forward:
    """Return a :class:`Forward` with these argument names in its signature, which symbolic export sizes require.

    Args:
        rest: arguments that are not tensors.
        again: arguments with tensors that others contain too, from :func:`~costproof.snapshots.copies.once`.
        cached: whether the model returns a cache, or fills one that is in ``rest``.
    """

    def forward(self: Forward, **args: torch.Tensor) -> Any:
        result = self.part(**restored(args, self.again), **self.rest)
        # A cache that was given is filled, whether it is returned or not.
        return (tensors(result), cache_tensors(result) or cache_tensors(self.rest)) if self.cached else tensors(result)

    forward.__signature__ = signature(names)  # type: ignore[attr-defined]
    made: Forward = type("Forward", (Forward,), {"forward": forward})(part, rest, again, cached=cached)
    return made


def signature(names: tuple[str, ...]) -> inspect.Signature:
    """Return the signature of a method with these keyword arguments."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([own, *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names)])


class CacheStep(nn.Module):
    """Runs one decode step on a key/value cache whose tensors are passed as arguments."""

    def __init__(self, part: nn.Module, decoder: OwnCache) -> None:
        super().__init__()
        self.part, self.decoder = part, decoder

    def forward(
        self,
        input_ids: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        positions: torch.Tensor | None = None,
    ) -> tuple[list[torch.Tensor], CacheTensors]:
        """Run the step.

        Args:
            input_ids: new tokens [B, S].
            keys: cached keys [B, kv heads, P, head dim] of each layer.
            values: cached values of each layer.
            positions: tensor [P, 0] without elements, whose length is the number of tokens before, which layers with
                chunks do not keep; ``None`` for a model without chunks.
        """
        past = list(zip(keys, values, strict=True))
        cache = self.decoder.cache_behind(self.part, past, 0 if positions is None else positions.shape[0])
        result = self.part(input_ids=input_ids, past_key_values=cache, use_cache=True)
        return tensors(result), self.decoder.cache_tensors(result.past_key_values)


class StatefulStep(nn.Module):
    """Runs one decode step on a copy of a cache whose tensors are passed as arguments.

    Args:
        counters: access paths of integers in the cache that grow with it -> their difference from the context length.
        grown: index of a state, and its dimension that is as long as the context.
    """

    def __init__(
        self, part: nn.Module, name: str, cache: Any, counters: Mapping[Path, int], grown: tuple[int, int]
    ) -> None:
        super().__init__()
        self.part, self.name, self.like, self.counters, self.grown = part, name, cache, dict(counters), grown

    def forward(
        self, input_ids: torch.Tensor, states: list[torch.Tensor], places: list[torch.Tensor] | None = None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        held, given = [*held_states(self.like), *held_places(self.like)], [*states, *(places or ())]
        own = own_tensors(self.like) | {id(t): s for t, s in zip(held, given, strict=True)}
        cache = copied(self.like, own)
        for path, more in self.counters.items():
            state, dim = self.grown
            put(cache, path, states[state].shape[dim] + more)
        result = self.part(**{"input_ids": input_ids, self.name: cache, "use_cache": True})
        return tensors(result), held_states(caches_of(result).get(self.name, cache))


def cache_tensors(result: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of the caches in a model's result, or ``[]``."""
    return held_states(*caches_of(result).values())


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the floating-point and complex tensors of a nested result in order, without its caches."""
    if isinstance(value, torch.Tensor):
        value = rows_of(value)
        return [value] if value.is_floating_point() or value.is_complex() else []
    if is_cache(value):
        return held_states(value)
    if is_dataclass(value) and not isinstance(value, dict):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, dict):
        value = [v for name, v in value.items() if name not in CACHES or isinstance(v, torch.Tensor)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    return []


@dataclass
class Handed(BaseModelOutput):  # type: ignore[misc]  # transformers has no types
    """Encoder output passed to a decoder; attributes that were not set, such as a mask, read as ``None``."""

    pooler_output: torch.Tensor | None = None
    """Pooled output, which decoders with some image encoders read instead of the last hidden state."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Encode(nn.Module):
    """Runs the encoder of a model and returns the first ``count`` tensors of its result."""

    def __init__(self, part: nn.Module, count: int) -> None:
        super().__init__()
        self.part, self.count = part, count

    def called(self, args: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Run the encoder and return the first ``count`` tensors of its result."""
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
