"""List keys of Hugging Face configurations that affect no cost, with the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.workload import FURTHER_TOKENS, OWN_CODE

_ORIGIN: Final = "says where the file is from"
_RUN: Final = "a matter of the run"
_TRAINING: Final = "affects only training"
_GENERATION: Final = "of the choice of tokens, which no module does"
_IDS: Final = "ids of tokens decide no cost"
_TOOLS: Final = "of tokenizers and processors"
_NAMES: Final = "of labels and tasks"
_FORMAT: Final = "of the form of what a call returns"
_SAME: Final = "the class does what it says"
_SMALL: Final = "a constant of a layer decides no cost"

HARMLESS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "_from_auto", "_class_name",
            "_diffusers_version", "model_name", "_auto_class", "unsloth_version", "unsloth_fixed", "model_type",
        ),
        _ORIGIN,
    ),
    **dict.fromkeys(
        (
            "torch_dtype", "dtype", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
            "_attn_implementation_internal", "experts_implementation", "_experts_implementation", "use_cache",
            "use_bfloat16", "torchscript", "_flash_attn_2_enabled", "use_flash_attn", "use_flash_attention_2",
            "ep_size", "tp_size", "pretraining_tp", "init_device", "use_mamba_kernels", "use_kernels", "expert_dtype",
        ),
        _RUN,
    ),
    **dict.fromkeys(
        (
            "initializer_range", "initializer_factor", "init_method", "init_config", "gradient_checkpointing",
            "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_z_loss_coef", "router_jitter_noise",
            "ignore_index", "use_reentrant", "tf_legacy_loss", "verbose",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(
        (
            "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
            "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
            "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
            "output_scores", "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty",
            "suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "prefix", "num_logits_to_keep",
            "epsilon_cutoff", "eta_cutoff",
        ),
        _GENERATION,
    ),
    **dict.fromkeys(
        ("tokenizer_class", "tokenizer_name", "processor_class", "image_processor_type", "model_max_length"), _TOOLS
    ),
    **dict.fromkeys(("finetuning_task", "task_specific_params", "output_past", "problem_type", "label2id"), _NAMES),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "return_dict", "use_return_dict"), _FORMAT),
    "auto_map": OWN_CODE,
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta"), _SMALL),
}  # fmt: skip
"""Keys that affect no cost of any model, with the reason."""
_ALIKE: Final = (
    (re.compile(r".*_token_ids?"), _IDS),
    (re.compile(r"id2label|num_labels"), _NAMES),
    (re.compile(r"(.*_)?(dropout|pdrop)(_.*)?"), _TRAINING),
    (re.compile(r".*_loss(_.*)?"), _TRAINING),
    (re.compile(r"(un)?(freeze|tune)_.*"), _TRAINING),
    (re.compile(r"unsloth_.*"), _ORIGIN),
)
_DENSE: Final = {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}
_SIGMOID: Final = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
_ANY: Final[Mapping[str, Any]] = {
    "is_decoder": False, "is_encoder_decoder": False, "add_cross_attention": False, "tie_encoder_decoder": False,
    "chunk_size_feed_forward": 0, "pruned_heads": {}, "cross_attention_hidden_size": None,
}  # fmt: skip
"""Keys that every class accepts, with their value in a class that does not use them."""
_SIZES: Final = ("hidden_size", "num_attention_heads", "num_hidden_layers")
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "deepseek_v2": ("num_experts",),
    "deepseek_v3": ("num_local_experts",),
    "distilbert": (*_SIZES, "hidden_act"),
    "gpt2": (*_SIZES, "max_position_embeddings"),
    "qwen3_vl_vision": _SIZES[1:],
    "t5": (*_SIZES, "head_dim"),
}
"""Other names of a model type's keys, in its class or in classes of other types, by model type."""
IMPLIED: Final[Mapping[str, Mapping[str, Any]]] = {
    "bert": {"position_embedding_type": "absolute"},
    "deepseek_v2": {"moe_layer_freq": 1, "scoring_func": "softmax"},
    "deepseek_v3": _SIGMOID,
    "deepseek_v32": _SIGMOID,
    "deepseek_v4": {"topk_method": "noaux_tc"},
    "falcon": {"apply_residual_connection_post_layernorm": False},
    "falcon_h1": {"mamba_use_mlp": True},
    "granitemoehybrid": {"normalization_function": "rmsnorm"},
    "mamba2": {"norm_before_gate": True, "rms_norm": True},
    "mimo_v2_flash": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "minimax_m2": {
        "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True, "shared_intermediate_size": 0,
        "scoring_func": "sigmoid",
    },
    "phi3": {"attention_bias": False},
    "qwen3": _DENSE,
    "qwen3_moe": _DENSE,
    "qwen3_next": {"use_sliding_window": False},
    "roberta": {"position_embedding_type": "absolute"},
    "xlm-roberta": {"position_embedding_type": "absolute"},
}  # fmt: skip
"""Keys that a model type's class does not read, with the values that describe what it does, by model type."""
_FURTHER: Final = re.compile(r"(num_|n_)?(mtp|nextn)_.*|.*_(mtp|nextn)_.*|use_mtp")


def is_read(kind: str, key: str) -> bool:
    """Return whether the class of this model type reads a key that affects no formula of a built-in family."""
    return key in _ANY or key in _ALIASES.get(kind, ()) or key == "quantization_config"


def aliases(kind: str) -> frozenset[str]:
    """Return alternative names of the keys of a model type."""
    return frozenset(_ALIASES.get(kind, ()))


def contradiction(kind: str, key: str, value: object, where: str) -> BadInput | None:
    """Return the problem of a key that contradicts the behaviour of the model type's class, or ``None``."""
    implied = IMPLIED.get(kind, {})
    if key not in implied or harmless(kind, key, value) is not None:
        return None
    expected = json.dumps(implied[key])
    return BadInput(
        "the class of transformers ignores this key and behaves as with another value",
        where=where,
        expected=expected,
        got=json.dumps(value)[:60],
    )


def harmless(kind: str, key: str, value: object) -> str | None:
    """Return the reason why an unread key affects no cost, or ``None`` if it may affect one.

    Args:
        kind: ``model_type`` of the object that contains the key.
    """
    if (reason := HARMLESS.get(key)) is not None:
        return reason
    for pattern, reason in _ALIKE:
        if pattern.fullmatch(key):
            return reason
    for implied in (IMPLIED.get(kind, {}), _ANY):
        if key in implied and (type(implied[key]), implied[key]) == (type(value), value):
            return _SAME
    if key in IMPLIED.get(kind, {}):
        return None
    if value is None:
        return "null"
    if _FURTHER.fullmatch(key):
        return FURTHER_TOKENS if value else _SAME
    return None


def type_of_class(data: Mapping[str, Any]) -> str | None:
    """Return the model type of the class that a configuration names, if its own type has no class.

    ``None`` if transformers has its type, or no such class. Example: ``kimi_k2`` names ``DeepseekV3ForCausalLM``.
    """
    named = data.get("architectures")
    if not isinstance(named, list) or not named or find_spec("transformers") is None:
        return None
    with suppress(ImportError):  # older versions have the names below
        from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES  # a table, which loads no torch

        if data.get("model_type") in CONFIG_MAPPING_NAMES:
            return None
    from transformers.models.auto import configuration_auto, modeling_auto

    configs = configuration_auto.CONFIG_MAPPING_NAMES
    if data.get("model_type") in configs:
        return None
    tables = (t for name, t in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES"))
    kinds = dict.fromkeys(kind for table in tables for kind, names in table.items() if named[0] in _each(names))
    # LlamaForCausalLM is the class of internlm3 too, and GPT2Config that of gpt-sw3: the type of its name comes first.
    return max(kinds, key=lambda kind: _named_alike(kind, str(configs.get(kind)), str(named[0])), default=None)


def _named_alike(kind: str, config: str, architecture: str) -> tuple[bool, bool]:
    """Return (prefix, own), two comparisons of the names of an architecture, a configuration class and a model type.

    ``prefix`` is whether the architecture's name begins with the class name without ``Config``; ``own`` is whether that
    name equals the model type without hyphens and underscores.
    """
    name = config.removesuffix("Config")
    return architecture.startswith(name), re.sub("[-_]", "", kind) == name.lower()


def _each(names: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
