"""The configuration of a Mixtral: everything that decides a cost, and nothing else; by default Mixtral-8x7B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.decoding.config import window_of_all
from costproof.models.decoding.mixtures import BESIDE, MixtureConfig, experts_of
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class MixtralConfig(MixtureConfig):
    """Sizes, the window of all layers if any, and whether the output projection is the embedding's table."""

    hidden: int = 4096
    intermediate: int = 14336
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 32000
    max_positions: int = 32768
    pattern: str = "w"

    not_drawn: ClassVar = {"pattern": "the class gives all layers the same window"}
    model_type: ClassVar[str] = "mixtral"
    architecture: ClassVar[str] = "MixtralForCausalLM"
    heads_divide: ClassVar = False
    one_mask: ClassVar = True
    left_out: ClassVar = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
    beside: ClassVar = {**BESIDE, "router_jitter_noise": "of training alone"}
    patterns: ClassVar[tuple[str, ...]] = ("w",)

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Experts and window."""
        return {**experts_of(top, cls(), "num_experts"), **window_of_all(top)}
