"""Where the parts of a model sit: roles that the formulas speak of -> module paths of an implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.models.decoding.names import decoder_names, mixture_names

_SAM: Final = "model.vision_tower.sam_encoder"
_CLIP: Final = "model.vision_tower.vision_encoder"
_TEXT: Final = "model.language_model"

NATIVE_NAMES: Final[Mapping[str, str]] = {
    "sam": _SAM,
    "sam.patches": f"{_SAM}.patch_embed",
    "sam.patches.projection": f"{_SAM}.patch_embed.projection",
    "sam.layer": f"{_SAM}.layers.{{i}}",
    "sam.layer.norm1": f"{_SAM}.layers.{{i}}.layer_norm1",
    "sam.layer.attention": f"{_SAM}.layers.{{i}}.attn",
    "sam.layer.attention.qkv": f"{_SAM}.layers.{{i}}.attn.qkv",
    "sam.layer.attention.out": f"{_SAM}.layers.{{i}}.attn.proj",
    "sam.layer.norm2": f"{_SAM}.layers.{{i}}.layer_norm2",
    "sam.layer.mlp": f"{_SAM}.layers.{{i}}.mlp",
    "sam.layer.mlp.up": f"{_SAM}.layers.{{i}}.mlp.lin1",
    "sam.layer.mlp.activation": f"{_SAM}.layers.{{i}}.mlp.act",
    "sam.layer.mlp.down": f"{_SAM}.layers.{{i}}.mlp.lin2",
    "sam.neck": f"{_SAM}.neck",
    "sam.neck.conv1": f"{_SAM}.neck.conv1",
    "sam.neck.norm1": f"{_SAM}.neck.layer_norm1",
    "sam.neck.conv2": f"{_SAM}.neck.conv2",
    "sam.neck.norm2": f"{_SAM}.neck.layer_norm2",
    "sam.downsample": f"{_SAM}.proj",
    "sam.downsample.conv1": f"{_SAM}.proj.conv1",
    "sam.downsample.conv2": f"{_SAM}.proj.conv2",
    "clip": _CLIP,
    "clip.embeddings": f"{_CLIP}.embeddings",
    "clip.positions": f"{_CLIP}.embeddings.position_embedding",
    "clip.norm": f"{_CLIP}.pre_layrnorm",
    "clip.encoder": f"{_CLIP}.encoder",
    "clip.layer": f"{_CLIP}.encoder.layers.{{i}}",
    "clip.layer.norm1": f"{_CLIP}.encoder.layers.{{i}}.layer_norm1",
    "clip.layer.attention": f"{_CLIP}.encoder.layers.{{i}}.self_attn",
    "clip.layer.attention.q": f"{_CLIP}.encoder.layers.{{i}}.self_attn.q_proj",
    "clip.layer.attention.k": f"{_CLIP}.encoder.layers.{{i}}.self_attn.k_proj",
    "clip.layer.attention.v": f"{_CLIP}.encoder.layers.{{i}}.self_attn.v_proj",
    "clip.layer.attention.out": f"{_CLIP}.encoder.layers.{{i}}.self_attn.out_proj",
    "clip.layer.norm2": f"{_CLIP}.encoder.layers.{{i}}.layer_norm2",
    "clip.layer.mlp": f"{_CLIP}.encoder.layers.{{i}}.mlp",
    "clip.layer.mlp.up": f"{_CLIP}.encoder.layers.{{i}}.mlp.fc1",
    "clip.layer.mlp.activation": f"{_CLIP}.encoder.layers.{{i}}.mlp.activation_fn",
    "clip.layer.mlp.down": f"{_CLIP}.encoder.layers.{{i}}.mlp.fc2",
    "vision": "model.vision_tower",
    "projector": "model.multi_modal_projector",
    "model": "model",
    **decoder_names(_TEXT),
    **mixture_names(_TEXT),
}
"""Paths in transformers' ``UnlimitedOcrForConditionalGeneration``; ``{i}`` is the number of the layer."""
