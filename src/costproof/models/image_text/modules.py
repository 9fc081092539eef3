"""Wrapper modules for exports of parts of a model; they add no operators. Imports torch and transformers.

Importing this module imports torch and transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling, MoeModelOutputWithPast

from costproof.models.encoding.patches import PackedLengths
from costproof.patches.modules import symbolic_int


class PartModule(nn.Module):
    """Runs a part of a model and returns its only output, or its last hidden state."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: Any = self.part(x)
        result: torch.Tensor = getattr(found, "last_hidden_state", found)
        return result


class Tower(nn.Module):
    """Runs an image encoder and returns the hidden states of one of its layers."""

    def __init__(self, part: nn.Module, layer: int) -> None:
        super().__init__()
        self.part, self.layer = part, layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x, output_hidden_states=self.layer).hidden_states[self.layer]
        return result


class PatchTower(nn.Module):
    """Runs the tower of a Qwen2.5-VL on patches, with given sequence lengths, positions and window order."""

    def __init__(self, part: nn.Module, images: PackedLengths, windows: PackedLengths) -> None:
        super().__init__()
        self.part, self.images, self.windows = part, images, windows

    def forward(self, x: torch.Tensor, places: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        found = self.part(
            x,
            grid_thw=None,
            position_ids=places,
            cu_seqlens=self.images,
            window_index=order,
            cu_window_seqlens=self.windows,
        )
        result: torch.Tensor = found.pooler_output
        return result


class PromptGlue(nn.Module):
    """Runs the operators between projector and decoder: token embedding, and scatter of image features.

    Args:
        part: the module that holds towers and decoder.
        decoder: name of its child that holds the layers of the decoder.
    """

    def __init__(self, part: nn.Module, decoder: str) -> None:
        super().__init__()
        table = part.get_submodule(f"{decoder}.embed_tokens")
        self.part = without_children(part, {decoder: EchoDecoder(table)})

    def forward(self, ids: torch.Tensor, features: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = {"image": BaseModelOutputWithPooling(pooler_output=features)}
        result = self.part(input_ids=ids, mm_encoder_outputs=given)
        returned = getattr(result, "image_hidden_states", None)
        return (result.last_hidden_state, *(() if returned is None else (returned,)))


class EchoDecoder(nn.Module):
    """Stand-in for a decoder, with its token embedding, that returns its input embeddings."""

    def __init__(self, embed_tokens: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def forward(self, inputs_embeds: torch.Tensor, **kwargs: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)


def without_children(module: nn.Module, replacements: dict[str, nn.Module]) -> nn.Module:
    """Return a shallow copy of a module with some children replaced."""
    clone = copy.copy(module)
    clone.__dict__["_modules"] = {**module._modules, **replacements}
    return clone


class SymbolicSideSam(PartModule):
    """Runs SAM on views whose side is symbolic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with symbolic_int():
            return super().forward(x)


class ClipOnFeatures(PartModule):
    """Runs CLIP of the remote code on given features; it uses only the batch size of the pixels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x, x)
        return result


class VisionProjector(nn.Module):
    """Runs the projector, and the operators of the vision tower after SAM and CLIP, on given outputs of these."""

    def __init__(self, tower: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.tower = without_children(tower, {"sam_encoder": EchoTower(), "vision_encoder": _GivenTower()})
        self.projector = projector

    def forward(self, features: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.projector(self.tower(features, given=hidden).last_hidden_state)
        return result


class PageGlue(nn.Module):
    """Runs the operators between projector and decoder for a page: embedding, newlines, separator, scatter.

    Args:
        part: the module that holds towers and decoder.
        given: further arguments about the page.
        around: returns the context in which the module runs.
    """

    def __init__(
        self, part: nn.Module, given: Mapping[str, Any], around: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__()
        language = part.get_submodule("language_model")
        replaced = {
            "vision_tower": EchoTower(),
            "multi_modal_projector": nn.Identity(),
            "language_model": EchoDecoder(language.get_submodule("embed_tokens")),
        }
        self.part = without_children(part, replaced)
        self.given, self.around = dict(given), around

    def forward(
        self, ids: torch.Tensor, views: torch.Tensor, crops: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with self.around():
            result = self.part(input_ids=ids, pixel_values=views, pixel_values_local=crops, **self.given)
        return result.last_hidden_state, list(result.image_hidden_states)


class EchoTower(nn.Module):
    """Stand-in for a tower that returns its input as the last hidden state."""

    def forward(self, x: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=x)


class _GivenTower(nn.Module):
    def forward(self, x: torch.Tensor, given: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=given)
