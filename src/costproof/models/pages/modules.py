"""Thin modules around parts of a model that reads pages, for exports; they add no operators.

Importing this module imports torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from costproof.models.image_text.modules import EchoDecoder, PartModule, without_children
from costproof.patches.model_forward import symbolic_int


class SymbolicSideSam(PartModule):
    """Runs SAM with a symbolic side of the views."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with symbolic_int():
            return super().forward(x)


class ClipOnFeatures(PartModule):
    """Runs CLIP of the remote code on given features; it reads only the number of its pixels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x, x)
        return result


class VisionProjector(nn.Module):
    """Runs the operators of the vision tower between given outputs of SAM and CLIP, and the projector."""

    def __init__(self, tower: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.tower = without_children(tower, {"sam_encoder": EchoTower(), "vision_encoder": _GivenTower()})
        self.projector = projector

    def forward(self, features: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.projector(self.tower(features, given=hidden).last_hidden_state)
        return result


class PageGlue(nn.Module):
    """Runs the operators between projector and decoder: token embedding, newlines, separator and scatter.

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
    """Replaces a tower: returns its input as the last hidden state."""

    def forward(self, x: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=x)


class _GivenTower(nn.Module):
    def forward(self, x: torch.Tensor, given: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=given)
