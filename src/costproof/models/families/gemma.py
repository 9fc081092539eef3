"""Gemma (first version): dense decoder with wide heads, scaled and tied embeddings (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.configs.reader import Section
from costproof.models.decoding.config import DecoderConfig
from costproof.models.decoding.formulas import ALL_PROJECTIONS, DecoderStyle
from costproof.models.decoding.target import CausalTarget


@dataclass(frozen=True, slots=True)
class GemmaConfig(DecoderConfig):
    """Sizes and optional attention biases; by default Gemma-7b."""

    hidden: int = 3072
    intermediate: int = 24576
    layers: int = 28
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 256
    vocab: int = 256000
    max_positions: int = 8192
    tied: bool = True
    activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False

    model_type: ClassVar[str] = "gemma"
    not_null: ClassVar = (*DecoderConfig.not_null, "attention_dropout", "head_dim", "num_key_value_heads")
    architecture: ClassVar[str] = "GemmaForCausalLM"
    heads_divide: ClassVar = False
    keys: ClassVar = {**DecoderConfig.keys, "attention_bias": "attention_bias"}
    class_defaults: ClassVar = {
        "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    unused_keys: ClassVar = {"hidden_activation": "the class reads hidden_act"}

    def __post_init__(self) -> None:
        # The first files of Gemma say "gelu", and mean the tanh form: the class takes it for that.
        if self.activation == "gelu":
            object.__setattr__(self, "activation", "gelu_pytorch_tanh")

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Return no fields; check that attention is causal."""
        why = "the formulas describe only causal attention"
        top.fixed("use_bidirectional_attention", None, False, why=why)
        return {}


@dataclass(frozen=True, slots=True)
class Gemma(CausalTarget[GemmaConfig]):
    """Target: ``GemmaForCausalLM`` with one configuration.

    Source: Gemma Team 2024, Gemma: Open Models Based on Gemini Research and Technology; ``GemmaForCausalLM``
    (transformers).
    """

    config: GemmaConfig = field(default_factory=GemmaConfig)
    name: str = "gemma"
    model_types: ClassVar[tuple[str, ...]] = ("gemma",)

    def style(self) -> DecoderStyle:
        bias = ALL_PROJECTIONS if self.config.attention_bias else ()
        return DecoderStyle(bias=bias, norm="centred_rms", scaled_embeddings=True)


TARGET: Final = Gemma
