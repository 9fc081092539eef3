"""GPT-OSS: experts with biases, windows in every other layer, attention sinks in every head (transformers)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar, Final

from costproof.analytic.experts import RoutingRule
from costproof.analytic.rotary import RotaryHalves
from costproof.configs.reader import Section
from costproof.ledger.workload import AttentionKind
from costproof.models import settings
from costproof.models.decoding.config import UNUSED_ROUTER_KEYS, MixtureConfig, experts_of, pattern_of
from costproof.models.decoding.formulas import ALL_PROJECTIONS, DecoderStyle
from costproof.models.decoding.sharding import HEAD_ONLY, ShardPlan
from costproof.models.decoding.target import CausalTarget
from costproof.models.target import Setting
from costproof.weights.stored import Stored


@dataclass(frozen=True, slots=True)
class GptOssConfig(MixtureConfig):
    """Sizes, the layers with an attention window, and attention biases; by default gpt-oss-120b."""

    hidden: int = 2880
    intermediate: int = 2880
    layers: int = 36
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 64
    vocab: int = 201088
    max_positions: int = 131072
    window: int = 128
    pattern: str = "wf"
    experts: int = 128
    top_k: int = 4
    attention_bias: bool = True

    model_type: ClassVar[str] = "gpt_oss"
    not_null: ClassVar = (
        *MixtureConfig.not_null, "attention_dropout", "head_dim", "num_key_value_heads", "router_aux_loss_coef",
        "swiglu_alpha", "swiglu_limit",
    )  # fmt: skip
    architecture: ClassVar[str] = "GptOssForCausalLM"
    heads_divide: ClassVar = False
    keys: ClassVar[Mapping[str, str]] = {**MixtureConfig.keys, "attention_bias": "attention_bias"}
    class_defaults: ClassVar = {
        "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "attention_bias": True,
    }  # fmt: skip
    unused_keys: ClassVar = {
        **UNUSED_ROUTER_KEYS,
        **dict.fromkeys(("swiglu_alpha", "swiglu_limit"), "decides no cost"),
        **dict.fromkeys(("experts_per_token", "initial_context_length"), "the class does not read it"),
    }

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the experts, the window length, and which layers have a window (by default every other one)."""
        window, pattern = top.integer("sliding_window", 128), pattern_of(top, sizes["layers"], "wf")
        return {**experts_of(top, cls(), "num_experts"), "window": window, "pattern": pattern}

    @classmethod
    def draw_fields(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """Draw random values of experts and other fields that ``random_config`` does not set, for a proof."""
        return {**MixtureConfig.draw_fields(sizes, rng)}


@dataclass(frozen=True, slots=True)
class GptOss(CausalTarget[GptOssConfig]):
    """Target: ``GptOssForCausalLM`` with one configuration.

    Source: OpenAI 2025, gpt-oss-120b and gpt-oss-20b model card; ``GptOssForCausalLM`` (transformers).
    """

    config: GptOssConfig = field(default_factory=GptOssConfig)
    name: str = "gpt-oss"
    model_types: ClassVar[tuple[str, ...]] = ("gpt_oss",)
    plan: ClassVar[ShardPlan | None] = HEAD_ONLY
    released: ClassVar[Stored] = Stored(
        (("weights", "mxfp4 (published)"),), described='{"quantization_config": {"quant_method": "mxfp4"}}'
    )
    attentions: ClassVar[tuple[AttentionKind, ...]] = ("eager",)
    # Its loop over experts multiplies in another way than those of other classes, which no rule reads.
    extra_settings: ClassVar[tuple[Setting, ...]] = (replace(settings.EXPERTS, choices=("grouped_mm", "batched_mm")),)

    def style(self) -> DecoderStyle:
        return DecoderStyle(
            bias=ALL_PROJECTIONS if self.config.attention_bias else (),
            sinks=True,
            pairs=True,
            table=RotaryHalves,
            norm="wide_rms",
            routing=RoutingRule(late=True, biased=True, scaled=False, narrow=True, upcast=False),
            router_module="router",
            clamped_experts=True,
        )


TARGET: Final = GptOss
