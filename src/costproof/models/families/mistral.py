"""Mistral: dense decoder, its early versions with a sliding window (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.configs.reader import Section
from costproof.models.decoding.config import WindowedConfig, window_of_all
from costproof.models.decoding.target import CausalTarget


@dataclass(frozen=True, slots=True)
class MistralConfig(WindowedConfig):
    """Sizes and the attention window of all layers; by default Mistral-7B-v0.1."""

    hidden: int = 4096
    intermediate: int = 14336
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 32000
    max_positions: int = 32768
    window: int = 4096
    pattern: str = "w"

    not_drawn: ClassVar = {"pattern": "the class gives all layers the same window"}
    model_type: ClassVar[str] = "mistral"
    not_null: ClassVar = (*WindowedConfig.not_null, "attention_dropout", "num_key_value_heads")
    architecture: ClassVar[str] = "MistralForCausalLM"
    heads_divide: ClassVar = False
    one_mask: ClassVar = True
    class_defaults: ClassVar = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
    patterns: ClassVar[tuple[str, ...]] = ("w",)

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the window of all layers; ``null`` means no window, as in version 0.2 and later."""
        return window_of_all(top, 4096)


@dataclass(frozen=True, slots=True)
class Mistral(CausalTarget[MistralConfig]):
    """Target: ``MistralForCausalLM`` with one configuration.

    Source: Jiang et al. 2023, Mistral 7B; ``MistralForCausalLM`` (transformers).
    """

    config: MistralConfig = field(default_factory=MistralConfig)
    name: str = "mistral"
    model_types: ClassVar[tuple[str, ...]] = ("mistral",)


TARGET: Final = Mistral
