"""Where the parts of a model sit: roles that the formulas speak of -> module paths of an implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.ledger.errors import BadInput

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
    "root": "",
    "model": "model",
    "text": _TEXT,
    "text.embedding": f"{_TEXT}.embed_tokens",
    "text.rotary": f"{_TEXT}.rotary_emb",
    "text.layer": f"{_TEXT}.layers.{{i}}",
    "text.layer.norm1": f"{_TEXT}.layers.{{i}}.input_layernorm",
    "text.layer.attention": f"{_TEXT}.layers.{{i}}.self_attn",
    "text.layer.attention.q": f"{_TEXT}.layers.{{i}}.self_attn.q_proj",
    "text.layer.attention.k": f"{_TEXT}.layers.{{i}}.self_attn.k_proj",
    "text.layer.attention.v": f"{_TEXT}.layers.{{i}}.self_attn.v_proj",
    "text.layer.attention.out": f"{_TEXT}.layers.{{i}}.self_attn.o_proj",
    "text.layer.norm2": f"{_TEXT}.layers.{{i}}.post_attention_layernorm",
    "text.layer.mlp": f"{_TEXT}.layers.{{i}}.mlp",
    "text.layer.mlp.gate": f"{_TEXT}.layers.{{i}}.mlp.gate_proj",
    "text.layer.mlp.up": f"{_TEXT}.layers.{{i}}.mlp.up_proj",
    "text.layer.mlp.activation": f"{_TEXT}.layers.{{i}}.mlp.act_fn",
    "text.layer.mlp.down": f"{_TEXT}.layers.{{i}}.mlp.down_proj",
    "text.layer.router": f"{_TEXT}.layers.{{i}}.mlp.gate",
    "text.layer.experts": f"{_TEXT}.layers.{{i}}.mlp.experts",
    "text.layer.experts.activation": f"{_TEXT}.layers.{{i}}.mlp.experts.act_fn",
    "text.layer.shared": f"{_TEXT}.layers.{{i}}.mlp.shared_experts",
    "text.layer.shared.gate": f"{_TEXT}.layers.{{i}}.mlp.shared_experts.gate_proj",
    "text.layer.shared.up": f"{_TEXT}.layers.{{i}}.mlp.shared_experts.up_proj",
    "text.layer.shared.activation": f"{_TEXT}.layers.{{i}}.mlp.shared_experts.act_fn",
    "text.layer.shared.down": f"{_TEXT}.layers.{{i}}.mlp.shared_experts.down_proj",
    "text.norm": f"{_TEXT}.norm",
    "lm_head": "lm_head",
}
"""Paths in transformers' ``UnlimitedOcrForConditionalGeneration``; ``{i}`` is the number of the layer."""


def path(names: Mapping[str, str], role: str, i: int = 0) -> str:
    """The module path of a role.

    Raises:
        BadInput: the implementation does not say where this part sits.
    """
    template = names.get(role)
    if template is None:
        raise BadInput("an implementation does not name a part of the model", where=role, expected="a module path")
    return template.replace("{i}", str(i))
