"""Where the parts of the model sit in the vendor's implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.models.decoding.names import decoder_names, mlp_names
from costproof.models.image_text.layout import StagePaths

SAM: Final = "model.sam_model"
CLIP: Final = "model.vision_model"
PROJECTOR: Final = "model.projector"

_BLOCK: Final = f"{SAM}.blocks.{{i}}"
_VIT: Final = f"{CLIP}.transformer.layers.{{i}}"
_TEXT: Final = "model.layers.{i}"

REMOTE_CODE_NAMES: Final[Mapping[str, str]] = {
    "sam": SAM,
    "sam.patches": f"{SAM}.patch_embed",
    "sam.patches.projection": f"{SAM}.patch_embed.proj",
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
    "sam.neck": f"{SAM}.neck",
    "sam.neck.conv1": f"{SAM}.neck.0",
    "sam.neck.norm1": f"{SAM}.neck.1",
    "sam.neck.conv2": f"{SAM}.neck.2",
    "sam.neck.norm2": f"{SAM}.neck.3",
    "sam.downsample.conv1": f"{SAM}.net_2",
    "sam.downsample.conv2": f"{SAM}.net_3",
    "clip": CLIP,
    "clip.embeddings": f"{CLIP}.embeddings",
    "clip.patches": f"{CLIP}.embeddings.patch_embedding",
    "clip.positions": f"{CLIP}.embeddings.position_embedding",
    "clip.norm": f"{CLIP}.pre_layrnorm",
    "clip.encoder": f"{CLIP}.transformer",
    "clip.layer": _VIT,
    "clip.layer.norm1": f"{_VIT}.layer_norm1",
    "clip.layer.attention": f"{_VIT}.self_attn",
    "clip.layer.attention.qkv": f"{_VIT}.self_attn.qkv_proj",
    "clip.layer.attention.out": f"{_VIT}.self_attn.out_proj",
    "clip.layer.norm2": f"{_VIT}.layer_norm2",
    "clip.layer.mlp": f"{_VIT}.mlp",
    "clip.layer.mlp.up": f"{_VIT}.mlp.fc1",
    "clip.layer.mlp.down": f"{_VIT}.mlp.fc2",
    "projector": PROJECTOR,
    "projector.linear": f"{PROJECTOR}.layers",
    "model": "model",
    **decoder_names("model"),
    "text.layer.attention.rotary": f"{_TEXT}.self_attn.rotary_emb",
    "text.layer.router": f"{_TEXT}.mlp.gate",
    "text.layer.experts": f"{_TEXT}.mlp.experts",
    **mlp_names("text.layer.shared", f"{_TEXT}.mlp.shared_experts"),
}
"""Paths in the vendor's ``DeepseekOCRForCausalLM``; ``{i}`` is the number of the layer."""

PARTS: Final = StagePaths({SAM: "sam", CLIP: "clip", PROJECTOR: "projector"})
