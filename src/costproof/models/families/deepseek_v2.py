"""DeepSeek-V2: latent attention, experts after dense layers, shared experts (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.experts import RoutingRule
from costproof.analytic.rotary import RotaryComplex
from costproof.configs.reader import Section
from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.formulas import DecoderStyle
from costproof.models.decoding.latent import LatentConfig, LatentTarget, draw_latents, latent_style, latents_of


@dataclass(frozen=True, slots=True)
class DeepseekV2Config(LatentConfig):
    """Sizes, and whether routing is limited to the best expert groups; by default DeepSeek-V2 (236B)."""

    hidden: int = 5120
    intermediate: int = 12288
    layers: int = 60
    heads: int = 128
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int = 102400
    max_positions: int = 163840
    experts: int = 160
    top_k: int = 6
    expert_width: int = 1536
    shared: int = 2
    dense_layers: int = 1
    groups: int = 8
    best_groups: int = 3
    q_rank: int = 1536
    kv_rank: int = 512
    nope: int = 128
    rope: int = 64
    value: int = 128
    limited: bool = True
    """Whether a token's experts are chosen only from its best groups."""

    model_type: ClassVar[str] = "deepseek_v2"
    not_null: ClassVar = (*LatentConfig.not_null, "routed_scaling_factor")
    architecture: ClassVar[str] = "DeepseekV2ForCausalLM"
    class_defaults: ClassVar = {
        "max_position_embeddings": 2048, "n_routed_experts": 64, "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0, "num_experts_per_tok": None,
    }  # fmt: skip
    unused_keys: ClassVar = {**LatentConfig.unused_keys, "norm_topk_prob": "the class does not read it"}

    @classmethod
    def flag_names(cls) -> tuple[str, ...]:
        """Return the names of the boolean fields that a file sets by a key."""
        return ("tied", "attention_bias")

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the settings of experts, expert groups and dense layers, and the widths of latent attention."""
        top.fixed("scoring_func", "softmax", why="the class has only this scoring function")
        top.fixed("mlp_bias", False, why="the formulas describe MLPs without biases")
        how = top.fixed("topk_method", "greedy", "group_limited_greedy", why="the class has only these methods")
        limited = how == "group_limited_greedy"
        groups = {}
        for name in ("groups", "best_groups"):
            value = top.take(cls.keys[name], None)
            groups[name] = top.check_integer(value, cls.keys[name]) if limited else 1
        return {**latents_of(top, cls()), **groups, "limited": limited}

    @classmethod
    def draw_fields(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """Draw random latent sizes and ``limited``, which only this family has, for a proof."""
        return {**draw_latents(sizes, rng), "limited": rng.random() < 0.5}

    def native(self) -> dict[str, Any]:
        how = "group_limited_greedy" if self.limited else "greedy"
        return {**LatentConfig.native(self), "topk_method": how}

    def contradictions(self) -> list[CostproofError]:
        found = LatentConfig.contradictions(self)
        if self.hidden % self.heads:
            what, expected = "the heads must divide the width", f"a divisor of {self.hidden}"
            found.append(BadInput(what, where="$.num_attention_heads", expected=expected, got=self.heads))
        what = "the rotary embedding of this class pairs neighbouring elements, so the width must be even"
        for name in ("nope", "kv_rank"):
            if getattr(self, name) % 2:
                where = f"$.{self.keys[name]}"
                found.append(BadInput(what, where=where, expected="an even width", got=getattr(self, name)))
        return found


@dataclass(frozen=True, slots=True)
class DeepseekV2(LatentTarget[DeepseekV2Config]):
    """Target: ``DeepseekV2ForCausalLM`` with one configuration.

    Source: DeepSeek-AI 2024, DeepSeek-V2; ``DeepseekV2ForCausalLM`` (transformers).
    """

    config: DeepseekV2Config = field(default_factory=DeepseekV2Config)
    name: str = "deepseek-v2"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v2",)

    def style(self) -> DecoderStyle:
        routing = RoutingRule(groups=sym("text_router_groups") if self.config.limited else 0)
        return latent_style(self.config, routing, RotaryComplex, as_complex=True)


TARGET: Final = DeepseekV2
