"""Llama: dense decoder with grouped queries (transformers' native class)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.models.decoding.config import DecoderConfig
from costproof.models.decoding.formulas import ALL_PROJECTIONS, DecoderStyle
from costproof.models.decoding.target import CausalTarget


@dataclass(frozen=True, slots=True)
class LlamaConfig(DecoderConfig):
    """Sizes and optional biases; by default Llama-3.1-8B."""

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

    model_type: ClassVar[str] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    keys: ClassVar = {**DecoderConfig.keys, "attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}


@dataclass(frozen=True, slots=True)
class Llama(CausalTarget[LlamaConfig]):
    """Target: ``LlamaForCausalLM`` with one configuration.

    Source: Touvron et al. 2023, LLaMA; Grattafiori et al. 2024, The Llama 3 Herd of Models;
    ``LlamaForCausalLM`` (transformers).
    """

    config: LlamaConfig = field(default_factory=LlamaConfig)
    name: str = "llama"
    model_types: ClassVar[tuple[str, ...]] = ("llama",)

    def style(self) -> DecoderStyle:
        return DecoderStyle(bias=ALL_PROJECTIONS if self.config.attention_bias else (), mlp_bias=self.config.mlp_bias)


TARGET: Final = Llama
