"""The configuration of a Qwen2: everything that decides a cost, and nothing else. The defaults are Qwen2.5-7B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.models.decoding.config import LateWindowedConfig


@dataclass(frozen=True, slots=True)
class Qwen2Config(LateWindowedConfig):
    """Sizes, and whether the output projection is the embedding's table; queries, keys and values have biases."""

    hidden: int = 3584
    intermediate: int = 18944
    layers: int = 28
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 152064
    max_positions: int = 131072

    model_type: ClassVar[str] = "qwen2"
    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    heads_divide: ClassVar = False
    beside: ClassVar = {"use_mrope": "the class does not read it"}
    left_out: ClassVar = {"num_key_value_heads": 32, "max_position_embeddings": 32768}
