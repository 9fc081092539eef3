"""Thin modules around the parts of a model of images and text; they add no operators.

Imported only where a model is at hand, because they need torch to be defined.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling, MoeModelOutputWithPast


class Part(nn.Module):
    """A part of a model, from its input to its one result or its last hidden state."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: Any = self.part(x)
        result: torch.Tensor = getattr(found, "last_hidden_state", found)
        return result


class Tower(nn.Module):
    """An encoder of images, from pixels to the hidden states of one of its layers."""

    def __init__(self, part: nn.Module, layer: int) -> None:
        super().__init__()
        self.part, self.layer = part, layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x, output_hidden_states=self.layer).hidden_states[self.layer]
        return result


class Glue(nn.Module):
    """The model's own operators between projector and decoder: the embedding, and features put into the prompt.

    Args:
        part: the module that holds towers and decoder.
        decoder: its child that holds the decoder's layers.
    """

    def __init__(self, part: nn.Module, decoder: str) -> None:
        super().__init__()
        table = part.get_submodule(f"{decoder}.embed_tokens")
        self.part = without_children(part, {decoder: Language(table)})

    def forward(self, ids: torch.Tensor, features: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = {"image": BaseModelOutputWithPooling(pooler_output=features)}
        result = self.part(input_ids=ids, mm_encoder_outputs=given)
        returned = getattr(result, "image_hidden_states", None)
        return (result.last_hidden_state, *(() if returned is None else (returned,)))


class Language(nn.Module):
    """In place of a decoder: its table of tokens, and embeddings as they come."""

    def __init__(self, embed_tokens: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def forward(self, inputs_embeds: torch.Tensor, **kwargs: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)


def without_children(module: nn.Module, replacements: dict[str, nn.Module]) -> nn.Module:
    """A shallow copy of a module in which some children are replaced; the original stays as it is."""
    clone = copy.copy(module)
    clone.__dict__["_modules"] = {**module._modules, **replacements}
    return clone
