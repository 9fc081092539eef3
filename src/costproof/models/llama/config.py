"""The configuration of a Llama: everything that decides a cost, and nothing else. The defaults are Llama-3.1-8B."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from costproof.analytic.mlp import ACTIVATION_FLOPS
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.files import read_json
from costproof.models.decoding.base import DecoderConfig
from costproof.models.section import Section, shown

_WAIVED: Final = {
    **dict.fromkeys(("architectures", "_name_or_path", "transformers_version", "auto_map"), "says where it is from"),
    **dict.fromkeys(("torch_dtype", "dtype"), "the dtype is a matter of the run"),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "token ids decide no cost"),
    **dict.fromkeys(("initializer_range", "attention_dropout", "use_cache"), "of training alone"),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "pretraining_tp"), "decides no cost"),
}
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

    def normalised(self) -> dict[str, Any]:
        """All that decides a cost, as plain data."""
        return {key: value for key, value in asdict(self).items() if key != "waived"}

    def config_hash(self) -> str:
        """First twelve hex digits of the SHA-256 of the normalised configuration."""
        return hashlib.sha256(json.dumps(self.normalised(), sort_keys=True).encode()).hexdigest()[:12]

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        named = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab")
        return {f"text_{name}": getattr(self, name) for name in named}

    def native(self) -> dict[str, Any]:
        """Keyword arguments for transformers' ``LlamaConfig``."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_positions,
            "attention_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
            "tie_word_embeddings": self.tied,
            "hidden_act": self.activation,
        }


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
    top.waive_all(_WAIVED)
    top.fixed("model_type", "llama", why="this is the configuration of another model")
    for key in ("rope_scaling", "rope_parameters"):
        scaling = top.take(key, None) or {}
        kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
        if kind not in _ROPES:
            what = "this rotation is not described by the formulas"
            top.problem(what, key, expected=" or ".join(_ROPES), got=shown(kind))
    hidden, heads = top.integer("hidden_size"), top.integer("num_attention_heads")
    kv_heads, head_dim = top.take("num_key_value_heads", None), top.take("head_dim", None)
    flags = [top.fixed(key, False, True, why="this is yes or no") for key in ("attention_bias", "mlp_bias")]
    config = LlamaConfig(
        hidden=hidden,
        intermediate=top.integer("intermediate_size"),
        layers=top.integer("num_hidden_layers", most=10_000),
        heads=heads,
        kv_heads=heads if kv_heads is None else top.check_integer(kv_heads, "num_key_value_heads"),
        head_dim=hidden // heads if head_dim is None else top.check_integer(head_dim, "head_dim"),
        vocab=top.integer("vocab_size"),
        max_positions=top.integer("max_position_embeddings", 2048),
        attention_bias=bool(flags[0]),
        mlp_bias=bool(flags[1]),
        tied=bool(top.fixed("tie_word_embeddings", False, True, why="this is yes or no")),
        activation=str(top.fixed("hidden_act", "silu", *ACTIVATION_FLOPS, why="no formula for this activation")),
    )
    waived = tuple(sorted(top.finish().items()))
    problems += [] if problems else contradictions(config)
    return LlamaConfig(**config.normalised(), waived=waived)


def contradictions(config: LlamaConfig) -> list[CostproofError]:
    """Sizes that transformers' class refuses, or cannot run."""
    found: list[CostproofError] = []

    def divides(what: str, key: str, whole: int, part: int) -> None:
        if whole % part:
            found.append(BadInput(what, where=f"$.{key}", expected=f"a divisor of {whole}", got=part))

    divides("the heads must divide the width", "num_attention_heads", config.hidden, config.heads)
    divides("the key/value heads must divide the heads", "num_key_value_heads", config.heads, config.kv_heads)
    if config.head_dim % 2:
        found.append(
            BadInput("rotation needs pairs", where="$.head_dim", expected="an even width", got=config.head_dim)
        )
    return found
