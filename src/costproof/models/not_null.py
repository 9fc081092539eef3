"""Keys for which the classes of transformers refuse ``null``, as far as formulas would take it for the usual value.

The classes declare it; the pinned version"s are held to this table by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOT_NULL: Final[Mapping[str, frozenset[str]]] = {
    "bert": frozenset(
        (
            "attention_probs_dropout_prob",
            "hidden_dropout_prob",
            "initializer_range",
            "layer_norm_eps",
            "use_cache",
        )
    ),
    "clip_vision_model": frozenset(
        (
            "initializer_factor",
            "initializer_range",
            "layer_norm_eps",
        )
    ),
    "deepseek_v2": frozenset(
        (
            "initializer_range",
            "rms_norm_eps",
            "routed_scaling_factor",
            "use_cache",
        )
    ),
    "deepseek_v3": frozenset(
        (
            "initializer_range",
            "num_mtp_layers",
            "rms_norm_eps",
            "routed_scaling_factor",
            "use_cache",
        )
    ),
    "dinov2": frozenset(
        (
            "apply_layernorm",
            "attention_probs_dropout_prob",
            "hidden_dropout_prob",
            "initializer_range",
            "layer_norm_eps",
            "layerscale_value",
            "reshape_hidden_states",
        )
    ),
    "distilbert": frozenset(
        (
            "attention_dropout",
            "dropout",
            "initializer_range",
            "qa_dropout",
            "seq_classif_dropout",
            "sinusoidal_pos_embds",
        )
    ),
    "gemma": frozenset(
        (
            "attention_dropout",
            "head_dim",
            "initializer_range",
            "num_key_value_heads",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "gemma2": frozenset(
        (
            "head_dim",
            "initializer_range",
            "num_key_value_heads",
            "query_pre_attn_scalar",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "gemma3_text": frozenset(
        (
            "head_dim",
            "initializer_range",
            "num_key_value_heads",
            "query_pre_attn_scalar",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "gpt2": frozenset(
        (
            "attn_pdrop",
            "embd_pdrop",
            "initializer_range",
            "layer_norm_epsilon",
            "resid_pdrop",
            "scale_attn_by_inverse_layer_idx",
            "scale_attn_weights",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "use_cache",
        )
    ),
    "gpt_oss": frozenset(
        (
            "attention_dropout",
            "head_dim",
            "initializer_range",
            "num_key_value_heads",
            "rms_norm_eps",
            "router_aux_loss_coef",
            "swiglu_alpha",
            "swiglu_limit",
            "use_cache",
        )
    ),
    "llama": frozenset(
        (
            "initializer_range",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "llava": frozenset(
        (
            "image_seq_length",
            "image_token_index",
        )
    ),
    "mistral": frozenset(
        (
            "attention_dropout",
            "initializer_range",
            "num_key_value_heads",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "mixtral": frozenset(
        (
            "attention_dropout",
            "initializer_range",
            "num_key_value_heads",
            "rms_norm_eps",
            "router_aux_loss_coef",
            "router_jitter_noise",
            "use_cache",
        )
    ),
    "qwen2": frozenset(
        (
            "attention_dropout",
            "head_dim",
            "initializer_range",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "qwen2_5_vl": frozenset(
        (
            "video_token_id",
            "vision_end_token_id",
            "vision_start_token_id",
        )
    ),
    "qwen2_5_vl_text": frozenset(
        (
            "initializer_range",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "qwen2_5_vl_vision": frozenset(
        (
            "initializer_range",
            "tokens_per_second",
        )
    ),
    "qwen3": frozenset(
        (
            "attention_dropout",
            "head_dim",
            "initializer_range",
            "rms_norm_eps",
            "use_cache",
        )
    ),
    "qwen3_moe": frozenset(
        (
            "attention_dropout",
            "head_dim",
            "initializer_range",
            "num_key_value_heads",
            "rms_norm_eps",
            "router_aux_loss_coef",
            "use_cache",
        )
    ),
    "qwen3_vl_vision": frozenset(("initializer_range",)),
    "roberta": frozenset(
        (
            "attention_probs_dropout_prob",
            "hidden_dropout_prob",
            "initializer_range",
            "layer_norm_eps",
            "use_cache",
        )
    ),
    "siglip_vision_model": frozenset(
        (
            "attention_dropout",
            "layer_norm_eps",
        )
    ),
    "t5": frozenset(
        (
            "classifier_dropout",
            "dropout_rate",
            "initializer_factor",
            "layer_norm_epsilon",
            "relative_attention_max_distance",
            "use_cache",
        )
    ),
    "vit": frozenset(
        (
            "attention_probs_dropout_prob",
            "encoder_stride",
            "hidden_dropout_prob",
            "initializer_range",
            "layer_norm_eps",
        )
    ),
    "xlm-roberta": frozenset(
        (
            "attention_probs_dropout_prob",
            "hidden_dropout_prob",
            "initializer_range",
            "layer_norm_eps",
            "use_cache",
        )
    ),
}
"""Type of a model -> such keys."""
