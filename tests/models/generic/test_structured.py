"""Arguments with a structure of their own, by hand: shapes that follow from a signature, a configuration, a layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LightGlueConfig

from costproof.models.generic.inputs import example_inputs
from costproof.models.generic.makers import MAKERS, Case


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


class Gridded(nn.Module):
    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> None: ...


class Coded(nn.Module):
    def forward(self, input_ids: torch.Tensor, audio_input_ids: Any = None) -> None: ...


class Chunked(nn.Module):
    def forward(self, input_features: torch.Tensor, chunk_sample_lengths: torch.Tensor) -> None: ...


class Padded(nn.Module):
    def forward(self, input_ids: torch.Tensor, input_values: Any = None, padding_mask: Any = None) -> None: ...


class Asked(nn.Module):
    def forward(self, input_ids: torch.Tensor, image_embeds_position_mask: Any = None) -> None: ...


class Placed(nn.Module):
    def forward(self, pixel_values: torch.Tensor, pixel_position_ids: torch.Tensor) -> None: ...


class Reading(nn.Module):
    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: Any = None,
        image_grid_thw: Any = None,
        pixel_position_ids: Any = None,
    ) -> None: ...


class Turning(nn.Module):
    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: Any = None,
        pixel_values: Any = None,
        image_grid_thw: Any = None,
        mm_token_type_ids: Any = None,
    ) -> None: ...


class Tiled(nn.Module):
    def forward(
        self, pixel_values: torch.Tensor, aspect_ratio_ids: Any = None, aspect_ratio_mask: Any = None
    ) -> None: ...


class Twice(nn.Module):
    def forward(self, pixel_values: Any = None, high_res_pixel_values: Any = None, image_sizes: Any = None) -> None: ...


class Looking(nn.Module):
    def forward(self, pixel_values: torch.Tensor, image_attention_mask: Any = None) -> None: ...


class Comparing(nn.Module):
    def forward(self, input_features: torch.Tensor, is_longer: Any = None) -> None: ...


class Flattened(nn.Module):
    def forward(self, flattened_patches: Any = None) -> None: ...


class Listening(nn.Module):
    def forward(
        self, input_values: torch.Tensor, input_features: torch.Tensor, input_features_mask: Any = None
    ) -> None: ...


class Speaking(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> None: ...


class Moving(nn.Module):
    def forward(
        self,
        state: torch.Tensor,
        noise: Any = None,
        timestep: Any = None,
        pixel_values: Any = None,
        pixel_attention_mask: torch.BoolTensor | None = None,
        actions: Any = None,
    ) -> None: ...


class Recurring(nn.Module):
    def forward(self, input_ids: torch.Tensor, state: Any = None, timestep: Any = None) -> None: ...


class Drafting(nn.Module):
    def forward(self, noise_embeds: torch.Tensor, context_hidden_states: torch.Tensor) -> None: ...


class Boxed(nn.Module):
    def forward(self, input_ids: torch.Tensor, visual_feats: Any = None, visual_pos: Any = None) -> None: ...


class Stacked(nn.Module):
    def forward(self, input_features: torch.Tensor, input_features_mask: Any = None) -> None: ...


class Singing(nn.Module):
    def forward(self, decoder_input_ids: torch.Tensor) -> None: ...


class Foretelling(nn.Module):
    def forward(
        self,
        past_values: torch.Tensor,
        past_time_features: torch.Tensor,
        past_observed_mask: torch.Tensor,
        future_values: Any = None,
        future_time_features: Any = None,
    ) -> None: ...


class Continuing(nn.Module):
    def forward(self, past_values: torch.Tensor, past_observed_mask: Any = None, future_values: Any = None) -> None: ...


class Painting(nn.Module):
    def forward(self, pixel_values: torch.Tensor, prompt_pixel_values: torch.Tensor) -> None: ...


class Hearing(nn.Module):
    def forward(self, audio_mel: torch.Tensor, audio_mel_mask: torch.BoolTensor) -> None: ...


def made(
    kind: type[nn.Module], layer: nn.Module, *, turned: bool = False, **config: Any
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of all that a module with this layer is given, for 2 texts of 5."""
    module = kind()
    module.layer = layer
    module.config = config.get("config") or SimpleNamespace(**config)  # type: ignore[assignment]
    case = Case(module, 2, 5, 7, turned=turned)
    takes = tuple(case.takes)
    args = example_inputs(case, None, tuple(n for n in takes if n in MAKERS)).args
    return {name: (tuple(value.shape), value.dtype) for name, value in args.items()}


SERIES = {"context_length": 6, "prediction_length": 4, "lags_sequence": [1, 3], "num_time_features": 2}
PATCHES = nn.Conv2d(3, 8, 14)
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
        (
            Coded, nn.Linear(6, 3), {"num_codebooks": 8},
            {"input_ids": ((2, 5), torch.long), "audio_input_ids": ((2, 16, 8), torch.long)},
        ),
        # Two chunks of 96 frames.
        (
            Chunked, nn.Linear(6, 3), {"feature_size": 12},
            {"input_features": ((2, 12, 96), FLOAT), "chunk_sample_lengths": ((2,), torch.long)},
        ),
        (
            Padded, nn.Linear(6, 3), {},
            {
                "input_ids": ((2, 5), torch.long), "input_values": ((2, 15_360), FLOAT),
                "padding_mask": ((2, 15_360), torch.long),
            },
        ),
        (
            Asked, nn.Linear(6, 3), {"latent_query_num": 3},
            {"input_ids": ((2, 5), torch.long), "image_embeds_position_mask": ((2, 5), torch.long)},
        ),
        # 28 x 28 pixels in patches of 14: 4 of 3 x 14 x 14 = 588 numbers for each of two images, in one row.
        (
            Gridded, PATCHES, {"image_size": 28, "patch_size": 14},
            {"pixel_values": ((8, 588), FLOAT), "image_grid_thw": ((2, 3), WHOLE)},
        ),
        (
            Gridded, PATCHES, {"image_size": 28, "patch_size": 14, "turned": True},
            {"pixel_values": ((8, 3, 14, 14), FLOAT), "image_grid_thw": ((2, 3), WHOLE)},
        ),
        # 3 x 3 patches become one: 28 / (14 * 3) is one such square, of 9 patches, for each image.
        (
            Placed, PATCHES, {"image_size": 28, "patch_size": 14, "pooling_kernel_size": 3},
            {"pixel_values": ((2, 9, 588), FLOAT), "pixel_position_ids": ((2, 9, 2), WHOLE)},
        ),
        # Where forward takes grids, images come in patches; positions that it can do without stay away.
        (
            Reading, PATCHES, {"image_size": 28, "patch_size": 14},
            {"input_ids": ((2, 5), WHOLE), "pixel_values": ((8, 588), FLOAT), "image_grid_thw": ((2, 3), WHOLE)},
        ),
        # The layer that a picture enters, not the first one: patches of 3*7*7; positions in time, row and column.
        (
            Turning, nn.ModuleDict({"text": nn.Linear(4, 4), "visual": nn.Conv2d(3, 8, 7)}),
            {"image_size": 28, "patch_size": 7},
            {
                "input_ids": ((2, 5), WHOLE), "position_ids": ((3, 2, 5), WHOLE),
                "pixel_values": ((32, 147), FLOAT), "image_grid_thw": ((2, 3), WHOLE),
            },
        ),
        # One image of 4 tiles with a ratio of its sides, beside which a mask says that it has all of them.
        (
            Tiled, PATCHES, {"vision_config": SimpleNamespace(image_size=28, max_num_tiles=4)},
            {
                "pixel_values": ((2, 1, 4, 3, 28, 28), FLOAT), "aspect_ratio_ids": ((2, 1), WHOLE),
                "aspect_ratio_mask": ((2, 1, 4), WHOLE),
            },
        ),
        # A second tower looks at the same image in more pixels.
        (
            Twice, PATCHES, {"image_size": 28, "high_res_vision_config": SimpleNamespace(image_size=64)},
            {
                "pixel_values": ((2, 3, 28, 28), FLOAT), "high_res_pixel_values": ((2, 3, 64, 64), FLOAT),
                "image_sizes": ((2, 2), WHOLE),
            },
        ),
        (Looking, PATCHES, {"image_size": 28}, {"pixel_values": ((2, 3, 28, 28), FLOAT)}),
        (
            Looking, PATCHES, {"image_size": 28, "turned": True},
            {"pixel_values": ((2, 1, 3, 28, 28), FLOAT), "image_attention_mask": ((2, 5, 1), WHOLE)},
        ),
        (
            Painting, PATCHES, {"image_size": [56, 28]},
            {"pixel_values": ((2, 3, 28, 28), FLOAT), "prompt_pixel_values": ((2, 3, 28, 28), FLOAT)},
        ),
        (
            Seeing, PATCHES,
            {"vision_config": SimpleNamespace(backbone_config=SimpleNamespace(image_size=[56, 28]))},
            {"pixel_values": ((2, 3, 56, 28), FLOAT)},
        ),
        # A square of 16 x 16 pixels holds 64 frames of 4 bins.
        (Comparing, PATCHES, {"spec_size": 16, "num_mel_bins": 4}, {"input_features": ((2, 1, 64, 4), FLOAT)}),
        # 28 x 28 pixels in patches of 14: four, each of 6 numbers behind its row and its column.
        (
            Flattened, nn.Linear(6, 3), {"image_size": 28, "patch_size": 14},
            {"flattened_patches": ((2, 4, 8), FLOAT)},
        ),
        (
            Boxed, nn.Linear(6, 3), {"visual_feat_dim": 6, "visual_pos_dim": 4},
            {"input_ids": ((2, 5), WHOLE), "visual_feats": ((2, 36, 6), FLOAT), "visual_pos": ((2, 36, 4), FLOAT)},
        ),
        # Three frames of 4 bins in a position.
        (
            Stacked, nn.Linear(12, 3), {"num_stacked_frames": 3, "num_mel_bins": 4},
            {"input_features": ((2, 5, 12), FLOAT), "input_features_mask": ((2, 5), WHOLE)},
        ),
        # What enters is four frames of 3 bins: forward stacks them itself where it says how many, else they come so.
        (
            Stacked, nn.Linear(12, 3),
            {"num_mel_bins": 3, "max_source_positions": 8, "subsampling_factor": 4, "turned": True},
            {"input_features": ((2, 16, 3), FLOAT), "input_features_mask": ((2, 16), WHOLE)},
        ),
        (
            Stacked, nn.Linear(12, 3), {"num_mel_bins": 3, "max_source_positions": 8, "turned": True},
            {"input_features": ((2, 16, 12), FLOAT), "input_features_mask": ((2, 16), WHOLE)},
        ),
        (Singing, PATCHES, {"decoder": SimpleNamespace(num_codebooks=4)}, {"decoder_input_ids": ((8, 7), WHOLE)}),
        # 6 positions and the longest lag of 3 are past, 4 are to come, 2 numbers tell the time of each.
        (Foretelling, nn.Linear(6, 3), SERIES, {
            "past_values": ((2, 9), FLOAT), "past_time_features": ((2, 9, 2), FLOAT),
            "past_observed_mask": ((2, 9), FLOAT), "future_values": ((2, 4), FLOAT),
            "future_time_features": ((2, 4, 2), FLOAT),
        }),
        (Continuing, nn.Linear(6, 3), SERIES, {"past_values": ((2, 9), FLOAT)}),
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
        # 15,360 samples, 320 to a position of the features: 48 of them.
        (
            Listening, nn.Linear(6, 3), {"feature_projection_input_dim": 6, "hop_length": 320, "turned": True},
            {
                "input_values": ((2, 1, 15_360), FLOAT), "input_features": ((2, 48, 6), FLOAT),
                "input_features_mask": ((2, 48), WHOLE),
            },
        ),
        (Stacked, nn.Linear(12, 3), {"num_chroma": 12, "hop_length": 320}, {
            "input_features": ((2, 5, 12), FLOAT), "input_features_mask": ((2, 5), WHOLE),
        }),
        # A token, and one code of each of 4 books, for each of 5 positions.
        (Speaking, nn.Linear(6, 3), {"num_codebooks": 4, "turned": True}, {"input_ids": ((2, 5, 5), WHOLE)}),
        (Speaking, nn.Linear(6, 3), {"num_codebooks": 4}, {"input_ids": ((2, 5), WHOLE)}),
        (
            Seeing, PATCHES, {"encoder": SimpleNamespace(vision_config=SimpleNamespace(image_size=28))},
            {"pixel_values": ((2, 3, 28, 28), FLOAT)},
        ),
        # 3 actions of 4 numbers each, in a state of 17; the actions themselves are what a loss compares with.
        (
            Moving, PATCHES,
            {"image_size": 28, "max_state_dim": 17, "max_action_dim": 4, "chunk_size": 3, "turned": True},
            {
                "state": ((2, 17), FLOAT), "noise": ((2, 3, 4), FLOAT), "timestep": ((2,), FLOAT),
                "pixel_values": ((2, 1, 3, 28, 28), FLOAT), "pixel_attention_mask": ((2, 1), torch.bool),
            },
        ),
        (Recurring, nn.Linear(6, 3), {}, {"input_ids": ((2, 5), WHOLE)}),
        # Two layers of width 6 beside each other, of each of 5 positions.
        (
            Drafting, nn.Linear(12, 6), {"hidden_size": 6, "block_size": 4, "target_layer_ids": [1, 5]},
            {"noise_embeds": ((2, 4, 6), FLOAT), "context_hidden_states": ((2, 5, 12), FLOAT)},
        ),
    ],
    ids=[
        "latents", "samples", "embedded", "queries", "episode", "codes of a sound", "chunks", "padded", "asked",
        "grids", "patches", "places", "read", "axes",
        "tiles", "twice", "looking",
        "turned", "example", "inner", "comparing", "flattened", "boxes", "stacked",
        "frames", "frames at once", "books", "series", "past", "pairs", "scaled",
        "mask", "heard", "both", "chroma", "codes", "ids", "encoder of images",
        "actions", "recurring", "draft",
    ],
)  # fmt: skip
def test_inputs_of_a_structure(
    kind: type[nn.Module], layer: nn.Module, config: dict[str, Any], shapes: dict[str, Any]
) -> None:
    assert made(kind, layer, **config) == shapes


def test_patches_enter_the_layer_that_is_named_so_outside_of_a_tower_too() -> None:
    layers = nn.ModuleDict({"before": nn.Linear(5, 5), "patch_embeddings": nn.Linear(12, 8)})
    # 28 / 14 = 2 rows and 2 columns of patches in each of 2 images; 12 numbers of each, as its layer takes.
    assert made(Gridded, layers, image_size=28, patch_size=14)["pixel_values"] == ((2 * 2 * 2, 12), FLOAT)


class Sized(nn.Module):
    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: Any = None,
        target_sizes: Any = None,
        position_ids: Any = None,
        mm_token_type_ids: Any = None,
    ) -> None: ...


def test_rows_and_columns_are_as_many_as_are_merged_into_tokens() -> None:
    found = made(Sized, nn.Conv2d(3, 8, 2), image_size=10, patch_size=2, downsample_mode="16x")
    # 10 / 2 = 5 rows of patches; 16 patches are one token, 4 by 4: 8 rows and 8 columns, 64 of 2 x 2 in each image.
    assert found["pixel_values"] == ((1, 3, 2, 2 * 64 * 2), FLOAT)
    assert (found["target_sizes"], found["position_ids"]) == (((2, 2), WHOLE), ((3, 2, 5), WHOLE))


def test_turned_a_linear_layer_reads_squares_of_pixels() -> None:
    sizes: Any = {"image_size": 16, "patch_size": 2, "spatial_merge_size": 2}
    # 16 / 2 = 8 rows and columns in each of 2 images; 2 by 2 patches of 2 x 2 x 3 numbers are one square.
    assert made(Gridded, nn.Linear(12, 5), **sizes)["pixel_values"] == ((2 * 64, 12), FLOAT)
    assert made(Gridded, nn.Linear(12, 5), **sizes, turned=True)["pixel_values"] == ((2 * 64, 4, 4, 3), FLOAT)
    # 13 numbers are no square of pixels.
    assert made(Gridded, nn.Linear(13, 5), **sizes, turned=True)["pixel_values"] == ((2 * 64, 13), FLOAT)
