"""The configuration of a Llama: everything that decides a cost, and nothing else. The defaults are Llama-3.1-8B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.models.decoding.config import TextConfig


@dataclass(frozen=True, slots=True)
class LlamaConfig(TextConfig):
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

    model_type: ClassVar[str] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    keys: ClassVar = {**TextConfig.keys, "attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
