"""Mixtral: decoder with a mixture of experts in every layer (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.analytic.router import RoutingRule
from costproof.configs.reader import Section
from costproof.models import settings
from costproof.models.decoding.config import UNUSED_ROUTER_KEYS, MixtureConfig, experts_of, window_of_all
from costproof.models.decoding.formulas import DecoderStyle
from costproof.models.decoding.target import CausalTarget
from costproof.models.target import Setting
from costproof.storage.scheme import CheckpointLayout


@dataclass(frozen=True, slots=True)
class MixtralConfig(MixtureConfig):
    """Sizes and an optional attention window; by default Mixtral-8x7B."""

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
    not_null: ClassVar = (
        *MixtureConfig.not_null, "attention_dropout", "num_key_value_heads", "router_aux_loss_coef",
        "router_jitter_noise",
    )  # fmt: skip
    architecture: ClassVar[str] = "MixtralForCausalLM"
    heads_divide: ClassVar = False
    one_mask: ClassVar = True
    class_defaults: ClassVar = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
    unused_keys: ClassVar = {**UNUSED_ROUTER_KEYS, "router_jitter_noise": "affects only training"}
    patterns: ClassVar[tuple[str, ...]] = ("w",)

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the experts and the window."""
        return {**experts_of(top, cls(), "num_experts"), **window_of_all(top)}


@dataclass(frozen=True, slots=True)
class Mixtral(CausalTarget[MixtralConfig]):
    """Target: ``MixtralForCausalLM`` with one configuration.

    Source: Jiang et al. 2024, Mixtral of Experts; ``MixtralForCausalLM`` (transformers).
    """

    config: MixtralConfig = field(default_factory=MixtralConfig)
    name: str = "mixtral"
    model_types: ClassVar[tuple[str, ...]] = ("mixtral",)
    checkpoint_layout: ClassVar[CheckpointLayout] = CheckpointLayout(
        expert_layers=("w1", "w3", "w2"), renamed=((".mlp", ".block_sparse_moe"),)
    )
    extra_settings: ClassVar[tuple[Setting, ...]] = (settings.EXPERTS,)

    def style(self) -> DecoderStyle:
        return DecoderStyle(routing=RoutingRule(normalised=True, scaled=False, upcast=False))


TARGET: Final = Mixtral
