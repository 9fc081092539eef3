"""Qwen2 and Qwen2.5: dense decoder with biased query, key and value projections (transformers' native class)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.models.decoding.config import LateWindowedConfig
from costproof.models.decoding.formulas import DecoderStyle
from costproof.models.decoding.target import CausalTarget


@dataclass(frozen=True, slots=True)
class Qwen2Config(LateWindowedConfig):
    """Sizes and attention windows; by default Qwen2.5-7B."""

    hidden: int = 3584
    intermediate: int = 18944
    layers: int = 28
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 152064
    max_positions: int = 131072

    model_type: ClassVar[str] = "qwen2"
    not_null: ClassVar = (*LateWindowedConfig.not_null, "attention_dropout", "head_dim")
    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    heads_divide: ClassVar = False
    unused_keys: ClassVar = {"use_mrope": "the class does not read it"}
    class_defaults: ClassVar = {"num_key_value_heads": 32, "max_position_embeddings": 32768}


@dataclass(frozen=True, slots=True)
class Qwen2(CausalTarget[Qwen2Config]):
    """Target: ``Qwen2ForCausalLM`` with one configuration.

    Source: Qwen Team 2024, Qwen2.5 Technical Report; ``Qwen2ForCausalLM`` (transformers).
    """

    config: Qwen2Config = field(default_factory=Qwen2Config)
    name: str = "qwen2"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2",)

    def style(self) -> DecoderStyle:
        return DecoderStyle(bias=("q", "k", "v"))


TARGET: Final = Qwen2
