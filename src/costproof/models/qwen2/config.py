"""The configuration of a Qwen2: everything that decides a cost, and nothing else. The defaults are Qwen2.5-7B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.decoding.config import WindowedConfig, late_windows
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class Qwen2Config(WindowedConfig):
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
    left_out: ClassVar = {"num_key_value_heads": 32, "max_position_embeddings": 32768}

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Window and pattern: the layers from ``max_window_layers`` on, and none unless ``use_sliding_window``."""
        return late_windows(top, sizes["layers"])

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return {**WindowedConfig.native(self), "use_sliding_window": any(self.windows())}
