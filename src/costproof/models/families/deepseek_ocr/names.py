"""Module paths of DeepSeek-OCR by role, in the native classes and in the vendor's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.models.decoding.names import decoder_names, mixture_names, mlp_names
from costproof.models.image_text.layout import StagePaths

VENDOR_SAM: Final = "model.sam_model"
VENDOR_CLIP: Final = "model.vision_model"
VENDOR_PROJECTOR: Final = "model.projector"

_SAM: Final = {
    "patches": ("patch_embed", "patch_embed"),
    "patches.projection": ("patch_embed.projection", "patch_embed.proj"),
    "layer": ("layers.{i}", "blocks.{i}"),
    "layer.norm1": ("layers.{i}.layer_norm1", "blocks.{i}.norm1"),
    "layer.attention": ("layers.{i}.attn", "blocks.{i}.attn"),
    "layer.attention.qkv": ("layers.{i}.attn.qkv", "blocks.{i}.attn.qkv"),
    "layer.attention.out": ("layers.{i}.attn.proj", "blocks.{i}.attn.proj"),
    "layer.norm2": ("layers.{i}.layer_norm2", "blocks.{i}.norm2"),
    "layer.mlp": ("layers.{i}.mlp", "blocks.{i}.mlp"),
    "layer.mlp.up": ("layers.{i}.mlp.lin1", "blocks.{i}.mlp.lin1"),
    "layer.mlp.activation": ("layers.{i}.mlp.act", "blocks.{i}.mlp.act"),
    "layer.mlp.down": ("layers.{i}.mlp.lin2", "blocks.{i}.mlp.lin2"),
    "neck": ("neck", "neck"),
    "neck.conv1": ("neck.conv1", "neck.0"),
    "neck.norm1": ("neck.layer_norm1", "neck.1"),
    "neck.conv2": ("neck.conv2", "neck.2"),
    "neck.norm2": ("neck.layer_norm2", "neck.3"),
    "downsample": ("proj", ""),
    "downsample.conv1": ("proj.conv1", "net_2"),
    "downsample.conv2": ("proj.conv2", "net_3"),
}
"""Module paths below SAM, (native, vendor), by role below ``sam``; empty if a code has no such module."""
_CLIP: Final = {
    "embeddings": ("embeddings", "embeddings"),
    "patches": ("", "embeddings.patch_embedding"),
    "positions": ("embeddings.position_embedding", "embeddings.position_embedding"),
    "norm": ("pre_layrnorm", "pre_layrnorm"),
    "encoder": ("encoder", "transformer"),
    "layer": ("encoder.layers.{i}", "transformer.layers.{i}"),
    **{
        f"layer.{role}": (f"encoder.layers.{{i}}.{native}", f"transformer.layers.{{i}}.{vendor}" if vendor else "")
        for role, native, vendor in (
            ("norm1", "layer_norm1", "layer_norm1"),
            ("attention", "self_attn", "self_attn"),
            ("attention.out", "self_attn.out_proj", "self_attn.out_proj"),
            ("norm2", "layer_norm2", "layer_norm2"),
            ("mlp", "mlp", "mlp"),
            ("mlp.up", "mlp.fc1", "mlp.fc1"),
            ("mlp.activation", "mlp.activation_fn", ""),
            ("mlp.down", "mlp.fc2", "mlp.fc2"),
        )
    },
    **{f"layer.attention.{x}": (f"encoder.layers.{{i}}.self_attn.{x}_proj", "") for x in "qkv"},
    "layer.attention.qkv": ("", "transformer.layers.{i}.self_attn.qkv_proj"),
}
"""Module paths below CLIP, (native, vendor), by role below ``clip``; empty if a code has no such module."""


def _towers(sam: str, clip: str, column: int) -> dict[str, str]:
    """Return the module paths of SAM and CLIP by role, from one column of the tables ``_SAM`` and ``_CLIP``.

    Args:
        sam: path of SAM.
        clip: path of CLIP.
        column: column of ``_SAM`` and ``_CLIP``: 0 for the native classes, 1 for the vendor's.
    """
    found = {"sam": sam, "clip": clip}
    for tower, table in (("sam", _SAM), ("clip", _CLIP)):
        found |= {
            f"{tower}.{role}": f"{found[tower]}.{names[column]}" for role, names in table.items() if names[column]
        }
    return found


NATIVE_NAMES: Final[Mapping[str, str]] = {
    **_towers("model.vision_tower.sam_encoder", "model.vision_tower.vision_encoder", 0),
    "vision": "model.vision_tower",
    "projector": "model.multi_modal_projector",
    "model": "model",
    **decoder_names("model.language_model"),
    **mixture_names("model.language_model"),
}
"""Module paths in transformers' ``UnlimitedOcrForConditionalGeneration``, by role; ``{i}`` is the index of a layer."""

VENDOR_NAMES: Final[Mapping[str, str]] = {
    **_towers(VENDOR_SAM, VENDOR_CLIP, 1),
    "projector": VENDOR_PROJECTOR,
    "projector.linear": f"{VENDOR_PROJECTOR}.layers",
    "model": "model",
    **decoder_names("model"),
    "text.layer.attention.rotary": "model.layers.{i}.self_attn.rotary_emb",
    "text.layer.router": "model.layers.{i}.mlp.gate",
    "text.layer.experts": "model.layers.{i}.mlp.experts",
    **mlp_names("text.layer.shared", "model.layers.{i}.mlp.shared_experts"),
}
"""Module paths in the vendor's ``DeepseekOCRForCausalLM``, by role; ``{i}`` is the index of a layer."""

VENDOR_STAGES: Final = StagePaths({VENDOR_SAM: "sam", VENDOR_CLIP: "clip", VENDOR_PROJECTOR: "projector"})
