"""The configuration of a Qwen3: everything that decides a cost, and nothing else. The defaults are Qwen3-8B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.decoding.config import WindowedConfig, late_windows
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class Qwen3Config(WindowedConfig):
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
    keys: ClassVar = {**WindowedConfig.keys, "attention_bias": "attention_bias"}
    left_out: ClassVar = {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768}

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Window and pattern: the layers from ``max_window_layers`` on, and none unless ``use_sliding_window``."""
        return late_windows(top, sizes["layers"])

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return {**WindowedConfig.native(self), "use_sliding_window": any(self.windows())}
