"""Reading the configuration of transformers' native classes (``model_type`` unlimited_ocr).

Takes what ``UnlimitedOcrConfig.save_pretrained`` writes (only what differs from the base class) and
what ``to_dict`` gives (everything). A missing key has the native class's default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.models.config_reader import Section, shown
from costproof.models.families.deepseek_ocr.config import (
    CHANNELS,
    CLIP_KEYS,
    SAM_KEYS,
    TEXT_KEYS,
    ClipConfig,
    OcrConfig,
    SamConfig,
    TextConfig,
)
from costproof.models.families.deepseek_ocr.consistency import ANYWHERE, DECODER, downsample

NATIVE_POSITIONS: Final = 32_768
"""``UnlimitedOcrTextConfig.max_position_embeddings``."""
NATIVE_WINDOW: Final = 128
"""``UnlimitedOcrTextConfig.sliding_window``."""

WAIVED: Final = {
    **ANYWHERE,
    "chunk_size_feed_forward": "the model's code never reads it",
    "dtype": "the workload decides the dtype",
    "id2label": "names of classes; the model has no classifier",
    "is_encoder_decoder": "the model is none, whatever this says",
    "label2id": "names of classes; the model has no classifier",
    "output_attentions": "what else a run returns; the run decides",
    "output_hidden_states": "what else a run returns; the run decides",
    "problem_type": "the model has no classifier",
    "return_dict": "how a run returns its result",
    "attention_dropout": "dropout does nothing in inference",
    "initializer_factor": "initial values cost nothing",
    "initializer_range": "initial values cost nothing",
    "layer_norm_eps": "the value of a constant costs nothing",
}
_TEXT: Final = {**WAIVED, **DECODER, "output_router_logits": "what else a run returns; the run decides"}
_ACTIVATION: Final = "only this activation is described by the formulas"

PATHS: Final = {
    **{f"sam.{field}": f"$.vision_config.sam_config.{key}" for field, key in SAM_KEYS.items()},
    "sam.global_layers": "$.vision_config.sam_config.global_attn_indexes",
    "sam.downsample": "$.vision_config.sam_config.downsample_channels",
    **{f"clip.{field}": f"$.vision_config.encoder_config.{key}" for field, key in CLIP_KEYS.items()},
    **{f"text.{field}": f"$.text_config.{key}" for field, key in TEXT_KEYS.items()},
    "text.dense_layers": "$.text_config.mlp_layer_types",
    "image_token": "$.image_token_id",
}
"""Where each number stands in the file."""


def read_native(top: Section) -> OcrConfig:
    """The configuration in the native file; what is wrong with it becomes a problem of the section."""
    top.waive(WAIVED)
    top.fixed("model_type", "unlimited_ocr", why="this model type is not the native DeepSeek-OCR's")
    top.fixed("tie_word_embeddings", False, why="an lm_head that shares the embedding table is not described")
    vision = top.child("vision_config", optional=True)
    vision.waive(WAIVED)
    vision.fixed("model_type", "unlimited_ocr_vision", why="this vision tower is not the native one")
    return OcrConfig(
        sam=read_sam(vision.child("sam_config", optional=True), "unlimited_ocr_sam_vision_model", SamConfig()),
        clip=_clip(vision.child("encoder_config", optional=True)),
        text=_text(top.child("text_config", optional=True)),
        image_token=top.integer("image_token_id", OcrConfig().image_token, least=0),
    )


def read_sam(section: Section, model_type: str, usual: SamConfig) -> SamConfig:
    """The section of SAM.

    Args:
        usual: the class's own values of keys that a file may leave out.
    """
    section.waive(WAIVED)
    section.fixed("model_type", model_type, why="this tower is not the native SAM")
    section.fixed("num_channels", CHANNELS, why="pages have three channels")
    section.fixed("hidden_act", "gelu", why=_ACTIVATION)
    section.fixed("qkv_bias", True, why="attention without biases is not described by the formulas")
    section.fixed("use_abs_pos", True, why="SAM without its position table is not described by the formulas")
    section.fixed("use_rel_pos", True, why="SAM without relative positions is not described by the formulas")
    return SamConfig(
        **section.sizes(SAM_KEYS, usual),
        global_layers=section.integers("global_attn_indexes", usual.global_layers, least=0),
        downsample=downsample(section, usual.downsample),
    )


def _clip(section: Section) -> ClipConfig:
    section.waive({**WAIVED, "num_channels": "this tower reads SAM's features, not pixels"})
    section.fixed("model_type", "unlimited_ocr_vision_encoder", why="this tower is not the native CLIP")
    section.fixed("hidden_act", "quick_gelu", why=_ACTIVATION)
    return ClipConfig(**section.sizes(CLIP_KEYS, ClipConfig()))


def _text(section: Section) -> TextConfig:
    made = read_text(section, "unlimited_ocr_text", replace(TextConfig(), max_positions=NATIVE_POSITIONS))
    _layer_types(section, made.layers)
    return replace(made, sliding_window=section.integer("sliding_window", NATIVE_WINDOW))


def read_text(section: Section, model_type: str, usual: TextConfig) -> TextConfig:
    """The section of a decoder with attention of many heads and mixtures of experts, which has no window.

    Args:
        usual: the class's own values of keys that a file may leave out.
    """
    section.waive(_TEXT)
    section.fixed("model_type", model_type, why="this decoder is not the native one")
    section.fixed("hidden_act", "silu", why=_ACTIVATION)
    section.fixed("attention_bias", False, why="attention with biases is not described by the formulas")
    section.fixed("mlp_bias", False, why="an MLP with biases is not described by the formulas")
    section.fixed("tie_word_embeddings", False, why="an lm_head that shares the embedding table is not described")
    section.fixed("topk_method", "greedy", why="only greedy routing is described by the formulas")
    keys = dict(TEXT_KEYS)
    if "num_experts" in section.data:
        keys["experts"] = "num_experts"
    if section.take("num_key_value_heads", usual.kv_heads) is None:
        del keys["kv_heads"]
    sizes = section.sizes(keys, usual)
    hidden, heads, layers = sizes["hidden"], sizes["heads"], sizes["layers"]
    head_dim = section.take("head_dim", None)
    if head_dim is not None and hidden % heads == 0 and head_dim != hidden // heads:
        section.problem(
            "the native class sets the head width to width / heads, whatever the file says",
            "head_dim",
            expected=hidden // heads,
            got=shown(head_dim),
        )
    return TextConfig(
        **{"kv_heads": heads, **sizes},
        dense_layers=_dense_layers(section, layers),
        rms_norm_eps=section.number("rms_norm_eps", usual.rms_norm_eps),
        rope_theta=_rope(section),
        routed_scaling_factor=section.number("routed_scaling_factor", usual.routed_scaling_factor),
    )


def _dense_layers(section: Section, layers: int) -> int:
    """Dense layers, from ``mlp_layer_types`` or the older ``first_k_dense_replace``."""
    first = section.integer("first_k_dense_replace", 1, least=0)
    kinds = section.take("mlp_layer_types", None)
    if kinds is None:
        return first
    if not isinstance(kinds, list) or any(k not in ("dense", "sparse") for k in kinds):
        section.problem("this must list a kind per layer", "mlp_layer_types", expected="'dense' or 'sparse' per layer")
        return 0
    dense = kinds.count("dense")
    if len(kinds) != layers:
        section.problem("this must list a kind per layer", "mlp_layer_types", expected=layers, got=len(kinds))
    elif kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        section.problem(
            "dense layers after sparse ones are not described by the formulas",
            "mlp_layer_types",
            expected="all dense layers first",
        )
    elif "first_k_dense_replace" in section.data and first != dense:
        section.problem("this contradicts mlp_layer_types", "first_k_dense_replace", expected=dense, got=first)
    return dense


def _layer_types(section: Section, layers: int) -> None:
    kinds = section.take("layer_types", None)
    if kinds is None:
        return
    known = ("reference_sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds):
        section.problem(
            "this must list a kind per layer",
            "layer_types",
            expected=f"{layers} of {known[0]!r} or {known[1]!r}",
            got=f"a list of {len(kinds)}" if isinstance(kinds, list) else shown(kinds),
        )


def _rope(section: Section) -> float:
    """Base of the rotary embedding; every kind of scaling is unsupported."""
    usual = TextConfig().rope_theta
    theta = section.number("rope_theta", usual)
    section.fixed("rope_scaling", None, why="scaled rotary embedding is not described by the formulas")
    if section.take("rope_parameters", None) is None:
        return theta
    rope = section.child("rope_parameters")
    rope.fixed("rope_type", "default", why="scaled rotary embedding is not described by the formulas")
    return rope.number("rope_theta", theta)
