"""Module paths of DeepSeek-OCR by role, in the native classes and in the vendor's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.models.decoding.names import decoder_names, mixture_names, mlp_names
from costproof.models.image_text.layout import StagePaths

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
"""Role -> module path in transformers' ``UnlimitedOcrForConditionalGeneration``; ``{i}`` is the index of a layer."""


VENDOR_SAM: Final = "model.sam_model"
VENDOR_CLIP: Final = "model.vision_model"
VENDOR_PROJECTOR: Final = "model.projector"

_BLOCK: Final = f"{VENDOR_SAM}.blocks.{{i}}"
_VIT: Final = f"{VENDOR_CLIP}.transformer.layers.{{i}}"
_VENDOR_TEXT: Final = "model.layers.{i}"

VENDOR_NAMES: Final[Mapping[str, str]] = {
    "sam": VENDOR_SAM,
    "sam.patches": f"{VENDOR_SAM}.patch_embed",
    "sam.patches.projection": f"{VENDOR_SAM}.patch_embed.proj",
    "sam.layer": _BLOCK,
    "sam.layer.norm1": f"{_BLOCK}.norm1",
    "sam.layer.attention": f"{_BLOCK}.attn",
    "sam.layer.attention.qkv": f"{_BLOCK}.attn.qkv",
    "sam.layer.attention.out": f"{_BLOCK}.attn.proj",
    "sam.layer.norm2": f"{_BLOCK}.norm2",
    "sam.layer.mlp": f"{_BLOCK}.mlp",
    "sam.layer.mlp.up": f"{_BLOCK}.mlp.lin1",
    "sam.layer.mlp.activation": f"{_BLOCK}.mlp.act",
    "sam.layer.mlp.down": f"{_BLOCK}.mlp.lin2",
    "sam.neck": f"{VENDOR_SAM}.neck",
    "sam.neck.conv1": f"{VENDOR_SAM}.neck.0",
    "sam.neck.norm1": f"{VENDOR_SAM}.neck.1",
    "sam.neck.conv2": f"{VENDOR_SAM}.neck.2",
    "sam.neck.norm2": f"{VENDOR_SAM}.neck.3",
    "sam.downsample.conv1": f"{VENDOR_SAM}.net_2",
    "sam.downsample.conv2": f"{VENDOR_SAM}.net_3",
    "clip": VENDOR_CLIP,
    "clip.embeddings": f"{VENDOR_CLIP}.embeddings",
    "clip.patches": f"{VENDOR_CLIP}.embeddings.patch_embedding",
    "clip.positions": f"{VENDOR_CLIP}.embeddings.position_embedding",
    "clip.norm": f"{VENDOR_CLIP}.pre_layrnorm",
    "clip.encoder": f"{VENDOR_CLIP}.transformer",
    "clip.layer": _VIT,
    "clip.layer.norm1": f"{_VIT}.layer_norm1",
    "clip.layer.attention": f"{_VIT}.self_attn",
    "clip.layer.attention.qkv": f"{_VIT}.self_attn.qkv_proj",
    "clip.layer.attention.out": f"{_VIT}.self_attn.out_proj",
    "clip.layer.norm2": f"{_VIT}.layer_norm2",
    "clip.layer.mlp": f"{_VIT}.mlp",
    "clip.layer.mlp.up": f"{_VIT}.mlp.fc1",
    "clip.layer.mlp.down": f"{_VIT}.mlp.fc2",
    "projector": VENDOR_PROJECTOR,
    "projector.linear": f"{VENDOR_PROJECTOR}.layers",
    "model": "model",
    **decoder_names("model"),
    "text.layer.attention.rotary": f"{_VENDOR_TEXT}.self_attn.rotary_emb",
    "text.layer.router": f"{_VENDOR_TEXT}.mlp.gate",
    "text.layer.experts": f"{_VENDOR_TEXT}.mlp.experts",
    **mlp_names("text.layer.shared", f"{_VENDOR_TEXT}.mlp.shared_experts"),
}
"""Role -> module path in the vendor's ``DeepseekOCRForCausalLM``; ``{i}`` is the index of a layer."""

VENDOR_STAGES: Final = StagePaths({VENDOR_SAM: "sam", VENDOR_CLIP: "clip", VENDOR_PROJECTOR: "projector"})
