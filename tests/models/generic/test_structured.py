"""Arguments with a structure of their own, by hand: shapes that follow from a signature, a configuration, a layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LightGlueConfig

from costproof.models.generic.inputs import example_inputs
from costproof.models.generic.makers import Case


class Latents(nn.Module):
    def forward(self, latents: torch.Tensor) -> None: ...


class States(nn.Module):
    def forward(self, hidden_states: torch.Tensor, use_cache: bool = False) -> None: ...


class Embedded(nn.Module):
    def forward(self, inputs_embeds: torch.Tensor) -> None: ...


class Asking(nn.Module):
    def forward(self, query_embeds: torch.Tensor, encoder_hidden_states: torch.Tensor | None = None) -> None: ...


class Acting(nn.Module):
    def forward(
        self,
        states: Any = None,
        actions: Any = None,
        rewards: Any = None,
        returns_to_go: Any = None,
        timesteps: Any = None,
    ) -> None: ...


class Seeing(nn.Module):
    def forward(self, pixel_values: torch.Tensor) -> None: ...


class Hearing(nn.Module):
    def forward(self, audio_mel: torch.Tensor, audio_mel_mask: torch.BoolTensor) -> None: ...


def made(kind: type[nn.Module], layer: nn.Module, **config: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of all that a module with this layer is given, for 2 texts of 5."""
    module = kind()
    module.layer = layer
    module.config = config.get("config") or SimpleNamespace(**config)  # type: ignore[assignment]
    takes = tuple(Case(module, 2, 5, 7).takes)
    args = example_inputs(Case(module, 2, 5, 7), None, tuple(n for n in takes if n != "use_cache")).args
    return {name: (tuple(value.shape), value.dtype) for name, value in args.items()}


FLOAT, WHOLE = torch.float32, torch.int64
EPISODE = {
    "states": ((2, 5, 17), FLOAT), "actions": ((2, 5, 4), FLOAT), "rewards": ((2, 5, 1), FLOAT),
    "returns_to_go": ((2, 5, 1), FLOAT), "timesteps": ((2, 5), WHOLE),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "layer", "config", "shapes"),
    [
        (Latents, nn.ConvTranspose1d(7, 3, 2), {}, {"latents": ((2, 7, 5), FLOAT)}),
        (States, nn.Conv1d(1, 3, 2), {}, {"hidden_states": ((2, 1, 15_360), FLOAT)}),
        (Embedded, nn.Linear(6, 3), {"hidden_size": 6}, {"inputs_embeds": ((2, 5, 6), FLOAT)}),
        (
            Asking, nn.Linear(6, 3), {"hidden_size": 6, "encoder_hidden_size": 9},
            {"query_embeds": ((2, 32, 6), FLOAT), "encoder_hidden_states": ((2, 5, 9), FLOAT)},
        ),
        (Acting, nn.Linear(17, 3), {"state_dim": 17, "act_dim": 4}, EPISODE),
        (Seeing, nn.Linear(6, 3), {"config": LightGlueConfig()}, {"pixel_values": ((2, 2, 3, 224, 224), FLOAT)}),
        # An image of a quarter of the side still has one patch of 384.
        (
            Seeing, nn.Linear(6, 3), {"scaled_images_ratios": [0.25, 0.5, 1], "patch_size": 384},
            {"pixel_values": ((2, 3, 1536, 1536), FLOAT)},
        ),
        (
            Hearing, nn.Linear(6, 3), {"input_feat_size": 8},
            {"audio_mel": ((2, 8, 3000), FLOAT), "audio_mel_mask": ((2, 3000), torch.bool)},
        ),
        # Each of 5 positions hears 8 frames.
        (
            Hearing, nn.Linear(6, 3), {"input_feat_size": 8, "audio_length_per_tok": 8},
            {"audio_mel": ((2, 8, 40), FLOAT), "audio_mel_mask": ((2, 40), torch.bool)},
        ),
    ],
    ids=["latents", "samples", "embedded", "queries", "episode", "pairs", "scaled", "mask", "heard"],
)  # fmt: skip
def test_inputs_of_a_structure(
    kind: type[nn.Module], layer: nn.Module, config: dict[str, Any], shapes: dict[str, Any]
) -> None:
    assert made(kind, layer, **config) == shapes
