"""The configuration of a Llama: everything that decides a cost, and nothing else. The defaults are Llama-3.1-8B."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from costproof.analytic.mlp import ACTIVATION_FLOPS
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.files import read_json
from costproof.models.decoding.base import DecoderConfig
from costproof.models.section import Section, renamed, shown

_WAIVED: Final = {
    **dict.fromkeys(("architectures", "_name_or_path", "transformers_version", "auto_map"), "says where it is from"),
    **dict.fromkeys(("torch_dtype", "dtype"), "the dtype is a matter of the run"),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "token ids decide no cost"),
    **dict.fromkeys(("initializer_range", "attention_dropout", "use_cache"), "of training alone"),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "pretraining_tp"), "decides no cost"),
}
_SIZES: Final = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
_FLAGS: Final = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias", "tied": "tie_word_embeddings"}
_KEYS: Final = {
    **_SIZES,
    **_FLAGS,
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_positions": "max_position_embeddings",
    "activation": "hidden_act",
}
"""Fields -> their keys in the file."""
_ROPES: Final = ("default", "linear", "llama3", "yarn")
"""Kinds of scaled rotation that change the frequencies once, when the model is built."""


@dataclass(frozen=True, slots=True)
class LlamaConfig(DecoderConfig):
    """Sizes, biases, and whether the output projection is the embedding's table."""

    hidden: int = 4096
    intermediate: int = 14336
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    max_positions: int = 131072
    attention_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    activation: str = "silu"
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that were read and not used, with the reason."""

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        named = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab")
        return {f"text_{name}": getattr(self, name) for name in named}

    def native(self) -> dict[str, Any]:
        """Keyword arguments for transformers' ``LlamaConfig``."""
        return renamed(self, _KEYS)


def load_config(path: Path) -> LlamaConfig:
    """Read a ``config.json`` of transformers' ``LlamaForCausalLM``.

    Raises:
        Problems: every key that is missing, unknown, out of range, or contradicts another.
    """
    problems: list[CostproofError] = []
    config = read_config(read_json(path, what="configuration"), problems)
    if problems:
        raise Problems(f"the configuration {path} cannot be used", problems)
    return config


def read_config(data: object, problems: list[CostproofError]) -> LlamaConfig:
    """:func:`load_config` for a value that is already read.

    Widths and numbers of layers must be there; another key that is left out has the class's own default.
    """
    top = Section(data, "$", problems)
    top.waive(_WAIVED)
    top.fixed("model_type", "llama", why="this is the configuration of another model")
    for key in ("rope_scaling", "rope_parameters"):
        scaling = top.take(key, None) or {}
        kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
        if kind not in _ROPES:
            what = "this rotation is not described by the formulas"
            top.problem(what, key, expected=" or ".join(_ROPES), got=shown(kind))
    sizes = top.sizes(_SIZES)
    heads = sizes["heads"]
    kv_heads, head_dim = top.take("num_key_value_heads", None), top.take("head_dim", None)
    flags: dict[str, Any] = {f: top.fixed(key, False, True, why="this is yes or no") for f, key in _FLAGS.items()}
    config = LlamaConfig(
        **sizes,
        kv_heads=heads if kv_heads is None else top.check_integer(kv_heads, "num_key_value_heads"),
        head_dim=sizes["hidden"] // heads if head_dim is None else top.check_integer(head_dim, "head_dim"),
        max_positions=top.integer("max_position_embeddings", 2048),
        **flags,
        activation=str(top.fixed("hidden_act", "silu", *ACTIVATION_FLOPS, why="no formula for this activation")),
    )
    config = replace(config, waived=top.finish())
    problems += [] if problems else contradictions(config)
    return config


def contradictions(config: LlamaConfig) -> list[CostproofError]:
    """Sizes that transformers' class refuses, or cannot run."""
    found: list[CostproofError] = [
        BadInput(what, where=f"$.{key}", expected=f"a divisor of {whole}", got=part)
        for what, key, whole, part in (
            ("the heads must divide the width", "num_attention_heads", config.hidden, config.heads),
            ("the key/value heads must divide the heads", "num_key_value_heads", config.heads, config.kv_heads),
        )
        if whole % part
    ]
    if config.head_dim % 2:
        found.append(
            BadInput("rotation needs pairs", where="$.head_dim", expected="an even width", got=config.head_dim)
        )
    return found
