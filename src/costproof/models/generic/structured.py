"""Create example arguments with inner structure: patches with their grids, inputs of agents and draft models.

Each maker depends on the other arguments of ``forward``: all inputs for an image in patches use one grid.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING

from costproof.ledger.attributes import attribute
from costproof.models.generic.makers import SAMPLES, Case, Example, first_layer, known, makes, sides

if TYPE_CHECKING:
    import torch


_GRIDS = ("grid_thw", "image_grid_thw", "image_grid_hw")
_BOXES = 36
"""Number of regions that a detector returns for an image."""


@makes("pixel_values")
def _pixels(case: Case) -> Example | None:
    """Create [B, channels, height, width], or [B, frames, channels, height, width] for a video; may be transposed.

    If ``forward`` takes the grids of images, all images are packed: [patches of all images, elements of a patch], in
    the alternative layout [patches of all images, channels, height, width], or for a linear layer [tokens of all
    images, height, width, channels] with one token per grid cell. With shapes or positions per image, or for a linear
    layer, each image is one row. With target sizes, images are columns of one: [1, channels, side, sum of sides]. An
    image that is cut into tiles is [B, tiles, channels, height, width], with aspect ratios [B, 1, tiles, channels, …].
    """
    if "target_sizes" in case.takes:
        channels, height, width = map(int, _first_weight(case).shape[1:])
        return Example(case.floats(1, channels, height, width * case.batch * _count(case)), {})
    if _packed(case):
        return Example(
            case.floats(case.batch * _count(case), *(_turned(case) if case.turned else (_volume(case),))), {}
        )
    if _in_rows(case):
        return Example(case.floats(case.batch, _count(case), _volume(case)), {})
    if "aspect_ratio_ids" in case.takes:
        side = _tile(case)
        return Example(case.floats(case.batch, 1, _most_tiles(case), 3, side, side))
    if (tiles := _tiles(case)) is not None:
        side = _tile(case)
        return Example(case.floats(case.batch, tiles, 3, side, side))
    height, width = sides(case)
    frames = 2 if _compares(case) else case.number("num_frames", default=0)
    channels = case.number("num_channels", "in_channels", "in_chans", default=3)
    images = (frames,) if frames else (1,) if case.turned else ()
    return Example(case.floats(case.batch, *images, channels, height, width))


def _turned(case: Case) -> tuple[int, ...]:
    """Return the shape of a patch for a patch convolution, or of a token [side, side, channels] for a linear layer."""
    volume, side = _volume(case), _patch(case)
    if len(_first_weight(case).shape) > 2 or volume % side**2:
        return tuple(_first_weight(case).shape[1:])
    return side * _merge(case), side * _merge(case), volume // side**2


def _in_rows(case: Case) -> bool:
    """Return whether each image is passed as one row of flattened patches."""
    from torch import nn

    shaped = "spatial_shapes" in case.takes or case.needs("pixel_position_ids")
    return shaped or (case.turned and isinstance(first_layer(case, "image"), nn.Linear))


def _packed(case: Case) -> bool:
    """Return whether the patches of all images are concatenated, with a grid for each image."""
    return any(name in case.takes for name in _GRIDS)


def _tile(case: Case) -> int:
    """Return the side of an image tile in pixels."""
    return int(attribute(attribute(case.config, "vision_config", None), "image_size", 0)) or sides(case)[0]


def _tiles(case: Case) -> int | None:
    """Return the number of tiles of an image, with its thumbnail, or ``None`` if the model uses no tiles."""
    count = attribute(sys.modules.get(type(case.module).__module__), "image_size_to_num_patches", None)
    points = attribute(case.config, "image_grid_pinpoints", None)
    return None if count is None or points is None else int(count(list(sides(case)), points, _tile(case)))


def _most_tiles(case: Case) -> int:
    return case.number("max_num_tiles", default=1)


def _compares(case: Case) -> bool:
    """Return whether the model matches keypoints of two images."""
    auto = attribute(sys.modules.get("transformers"), "AutoModelForKeypointMatching", None)
    return auto is not None and type(case.config) in auto._model_mapping


@makes("hidden_states", "latents", "inputs_embeds")
def _states(case: Case) -> Example | None:
    """Create the required input of a model part's first layer: [B, channels, S], or [B, 1, samples] for one channel.

    A tower that gets the grids of its images takes patches: [patches of all images, elements of a patch].
    """
    if not any(case.needs(name) for name in ("hidden_states", "latents", "inputs_embeds")):
        return None
    if _packed(case):
        return Example(case.floats(case.batch * _count(case), _volume(case)), {})
    channels = attribute(first_layer(case), "in_channels", None)
    if channels is None or "inputs_embeds" in case.takes:
        width = case.number("hidden_size", "d_model", default=1)
        return Example(case.floats(case.batch, case.length, width), {0: "B", 1: "S"})
    return Example(case.floats(case.batch, channels, SAMPLES if channels == 1 else case.length))


@makes("query_embeds")
def _queries(case: Case) -> Example:
    """Create learned-query inputs [B, queries, width]."""
    return Example(
        case.floats(case.batch, case.number("num_query_tokens", default=32), case.number("hidden_size", default=1))
    )


@makes("encoder_hidden_states")
def _attended(case: Case) -> Example | None:
    """Create encoder states [B, S, encoder width] for a part whose queries attend to them."""
    if not case.needs("query_embeds"):
        return None
    return Example(case.floats(case.batch, case.length, case.number("encoder_hidden_size", "hidden_size", default=1)))


def _moments(case: Case, size: str) -> Example | None:
    """Create the steps of an episode [B, S, size of one step], for a decision model."""
    if "states" not in case.takes:
        return None
    return Example(case.floats(case.batch, case.length, case.number(size, default=1)), {0: "B", 1: "S"})


for _name, _size in {"states": "state_dim", "actions": "act_dim", "rewards": "", "returns_to_go": ""}.items():
    makes(_name)(partial(_moments, size=_size))


@makes("state")
def _state(case: Case) -> Example | None:
    """Create the state of a robot [B, state size], for a policy model."""
    width = case.number("max_state_dim", default=0)
    return Example(case.floats(case.batch, width)) if width else None


@makes("noise")
def _noise(case: Case) -> Example | None:
    """Create [B, actions, action size], the noise from which actions are denoised."""
    width = case.number("max_action_dim", default=0)
    return Example(case.floats(case.batch, case.number("chunk_size", default=1), width)) if width else None


@makes("timestep")
def _time(case: Case) -> Example | None:
    """Create the denoising time, [B]."""
    return Example(case.floats(case.batch)) if "state" in case.takes and "noise" in case.takes else None


@makes("noise_embeds")
def _block(case: Case) -> Example:
    """Create the embeddings of a block of draft tokens, [B, draft tokens, width]."""
    return Example(case.floats(case.batch, case.number("block_size", default=1), case.number("hidden_size", default=1)))


@makes("context_hidden_states")
def _drafted_on(case: Case) -> Example:
    """Create the target model's states [B, S, total width of the chosen layers], which a draft model reads."""
    layers = len(attribute(case.config, "target_layer_ids", ()))
    width = layers * case.number("hidden_size", default=1)
    return Example(case.floats(case.batch, case.length, width), {0: "B", 1: "S"})


@makes("timesteps")
def _times(case: Case) -> Example | None:
    """Create [B, S], the time step of each state."""
    return Example(case.whole(case.batch, case.length), {0: "B", 1: "S"}) if "states" in case.takes else None


@makes("grid_thw", "image_grid_thw")
def _grids(case: Case) -> Example | None:
    """Create the grid of each image: frames, rows and columns of patches."""
    return known([[1, *_grid(case)]] * case.batch) if _packed(case) else None


@makes("image_grid_hw")
def _planes(case: Case) -> Example:
    """Create the grid of each image: rows and columns of patches."""
    return known([list(_grid(case))] * case.batch)


@makes("image_sizes")
def _sizes(case: Case) -> Example | None:
    """Create the height and width of each image in pixels."""
    if "pixel_values" not in case.takes:
        return None
    # What cuts images into tiles takes numbers as they are.
    values = [list(sides(case))] * case.batch
    return known(values) if _tiles(case) is None else Example(values, {})


@makes("high_res_pixel_values")
def _high(case: Case) -> Example:
    """Create [B, channels, height, width], a high-resolution copy of the image for a second tower."""
    side = int(attribute(attribute(case.config, "high_res_vision_config", None), "image_size", sides(case)[0]))
    return Example(case.floats(case.batch, 3, side, side))


@makes("aspect_ratio_ids")
def _ratio(case: Case) -> Example:
    """Create [B, 1], the index of each image's aspect ratio."""
    return Example(case.whole(case.batch, 1))


@makes("aspect_ratio_mask")
def _ratios(case: Case) -> Example:
    """Create the mask [B, 1, tiles] of each image's tiles."""
    return Example(case.whole(case.batch, 1, _most_tiles(case)))


@makes("spatial_shapes", "target_sizes")
def _shapes(case: Case) -> Example:
    """Create the grid of each image, rows and columns of patches, for arguments named as shapes."""
    return known([list(_grid(case))] * case.batch)


@makes("merge_sizes", "image_merge_sizes")
def _merged(case: Case) -> Example:
    """Create, for each image, how many patches per side are merged into a token."""
    return known([_merge(case)] * case.batch)


@makes("pixel_attention_mask")
def _seen(case: Case) -> Example | None:
    """Create an image mask: [B, patches] where images are rows of patches, else [B, images]."""
    if "state" in case.takes:
        return Example(case.whole(case.batch, 1))
    if "tile_fine_mask" in case.takes and case.turned:
        return known([[1]] * case.batch)
    if "spatial_shapes" not in case.takes:
        return None
    if "input_ids" in case.takes:  # how many places they take is worked out of it
        return known([[1] * _count(case)] * case.batch)
    return Example(case.whole(case.batch, _count(case)), {})


@makes("flattened_patches")
def _flattened(case: Case) -> Example:
    """Create flattened patches [B, patches, 2 + elements], each preceded by its row and column."""
    return Example(case.floats(case.batch, _count(case), 2 + _volume(case)), {})


@makes("pixel_position_ids")
def _places(case: Case) -> Example | None:
    """Create [B, patches, 2], the column and the row of each patch."""
    return Example(case.whole(case.batch, _count(case), 2), {}) if case.needs("pixel_position_ids") else None


@makes("image_attention_mask")
def _looked_at(case: Case) -> Example | None:
    """Create the mask [B, S, images] of the images that each text position attends to."""
    return Example(case.whole(case.batch, case.length, 1), {0: "B", 1: "S"}) if case.turned else None


def _boxed(case: Case, width: str) -> Example | None:
    """Create bounding boxes [B, boxes, values per box], if the configuration states the values per box."""
    found = case.number(width, default=0)
    return Example(case.floats(case.batch, _BOXES, found)) if found else None


for _name, _width in {"visual_feats": "visual_feat_dim", "visual_pos": "visual_pos_dim"}.items():
    makes(_name)(partial(_boxed, width=_width))


def _grid(case: Case) -> tuple[int, int]:
    """Return the rows and columns of patches of an image, each a multiple of the merge size."""
    patch, merge = _patch(case), _merge(case)
    height, width = sides(case)
    return -(-height // (patch * merge)) * merge, -(-width // (patch * merge)) * merge


def _count(case: Case) -> int:
    return math.prod(_grid(case))


def _patch(case: Case) -> int:
    return case.number("patch_size", default=16)


def _merge(case: Case) -> int:
    """Return the patches per side of a token; some models state its square, such as ``16x``."""
    if mode := attribute(case.config, "downsample_mode", ""):
        return math.isqrt(int(mode.rstrip("x")))
    return case.number("spatial_merge_size", "merge_size", "pooling_kernel_size", default=1)


def _volume(case: Case) -> int:
    """Return the number of elements of a patch, the input width of the first layer."""
    return math.prod(_first_weight(case).shape[1:])


def _first_weight(case: Case) -> torch.Tensor:
    weight: torch.Tensor = first_layer(case, "image").weight  # type: ignore[assignment]
    return weight
