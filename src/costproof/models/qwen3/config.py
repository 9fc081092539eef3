"""The configuration of a Qwen3: everything that decides a cost, and nothing else. The defaults are Qwen3-8B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.models.decoding.config import LateWindowedConfig


@dataclass(frozen=True, slots=True)
class Qwen3Config(LateWindowedConfig):
    """Sizes, biases of attention, and whether the output projection is the embedding's table."""

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
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    heads_divide: ClassVar = False
    keys: ClassVar = {**LateWindowedConfig.keys, "attention_bias": "attention_bias"}
    left_out: ClassVar = {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768}
