"""Qwen3: dense decoder with normalised queries and keys (transformers' native class)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.models.decoding.config import LateWindowedConfig
from costproof.models.decoding.formulas import ALL_PROJECTIONS, DecoderStyle
from costproof.models.decoding.target import CausalTarget


@dataclass(frozen=True, slots=True)
class Qwen3Config(LateWindowedConfig):
    """Sizes, attention windows and optional attention biases; by default Qwen3-8B."""

    hidden: int = 4096
    intermediate: int = 12288
    layers: int = 36
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 151936
    max_positions: int = 40960
    attention_bias: bool = False

    model_type: ClassVar[str] = "qwen3"
    not_null: ClassVar = (*LateWindowedConfig.not_null, "attention_dropout", "head_dim")
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    heads_divide: ClassVar = False
    keys: ClassVar = {**LateWindowedConfig.keys, "attention_bias": "attention_bias"}
    class_defaults: ClassVar = {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768}


@dataclass(frozen=True, slots=True)
class Qwen3(CausalTarget[Qwen3Config]):
    """Target: ``Qwen3ForCausalLM`` with one configuration.

    Source: Qwen Team 2025, Qwen3 Technical Report; ``Qwen3ForCausalLM`` (transformers).
    """

    config: Qwen3Config = field(default_factory=Qwen3Config)
    name: str = "qwen3"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3",)

    def style(self) -> DecoderStyle:
        return DecoderStyle(bias=ALL_PROJECTIONS if self.config.attention_bias else (), qk_norm=True)


TARGET: Final = Qwen3
