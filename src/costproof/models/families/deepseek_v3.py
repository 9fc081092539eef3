"""DeepSeek-V3: latent attention, grouped experts after dense layers, shared experts (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.experts import RoutingRule
from costproof.analytic.rotary import RotaryTable
from costproof.configs.reader import Section
from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.config import number_of
from costproof.models.decoding.formulas import DecoderStyle
from costproof.models.decoding.latent import LatentConfig, LatentTarget, latent_style, latents_of
from costproof.models.decoding.sharding import WHOLE_ATTENTION, ShardPlan
from costproof.weights.stored import Stored

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes


@dataclass(frozen=True, slots=True)
class DeepseekV3Config(LatentConfig):
    """Sizes, and how the router chooses and weights experts; by default the published configuration."""

    hidden: int = 7168
    intermediate: int = 18432
    layers: int = 61
    heads: int = 128
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int = 129280
    max_positions: int = 163840
    experts: int = 256
    top_k: int = 8
    expert_width: int = 2048
    shared: int = 1
    dense_layers: int = 3
    groups: int = 8
    best_groups: int = 4
    q_rank: int = 1536
    kv_rank: int = 512
    nope: int = 128
    rope: int = 64
    value: int = 128
    norm_topk: bool = True
    """Whether the weights of a token's experts are divided by their sum."""

    model_type: ClassVar[str] = "deepseek_v3"
    not_null: ClassVar = (*LatentConfig.not_null, "num_mtp_layers", "routed_scaling_factor")
    architecture: ClassVar[str] = "DeepseekV3ForCausalLM"
    keys: ClassVar = {**LatentConfig.keys, "norm_topk": "norm_topk_prob"}
    class_defaults: ClassVar = {"num_key_value_heads": 128, "max_position_embeddings": 4096, "norm_topk_prob": True}

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the settings of experts, expert groups and dense layers, and the widths of latent attention."""
        top.fixed("scoring_func", "sigmoid", why="the class has only this scoring function")
        top.fixed("rope_interleave", True, why="the formulas describe neighbours that are rotated together")
        top.fixed("topk_method", "noaux_tc", why="the class has only this method")
        groups = {field: number_of(top, cls(), field) for field in ("groups", "best_groups")}
        latents = latents_of(top, cls())
        # Files that the class saved have it: its table of angles is as wide as this says.
        top.fixed("head_dim", latents["rope"], why="the class rotates exactly qk_rope_head_dim elements")
        return {**latents, **groups}

    def contradictions(self) -> list[CostproofError]:
        found = LatentConfig.contradictions(self)
        if self.experts < 2 * self.groups:
            expected = f"at most {self.experts // 2} groups, since the router scores a group by its two best experts"
            found.append(
                BadInput("a group needs at least two experts", where="$.n_group", expected=expected, got=self.groups)
            )
        return found


@dataclass(frozen=True, slots=True)
class DeepseekV3(LatentTarget[DeepseekV3Config]):
    """Target: ``DeepseekV3ForCausalLM`` with one configuration.

    Source: DeepSeek-AI 2024, DeepSeek-V3 Technical Report; ``DeepseekV3ForCausalLM`` (transformers).
    """

    config: DeepseekV3Config = field(default_factory=DeepseekV3Config)
    name: str = "deepseek-v3"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v3",)
    plan: ClassVar[ShardPlan | None] = WHOLE_ATTENTION
    released: ClassVar[Stored] = Stored(
        (("weights", "fp8, blocks of 128 x 128 (published)"),),
        described='{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}',
    )

    @staticmethod
    def mistakes() -> Mistakes:
        """Return the mistakes common in published numbers of this model."""
        from costproof.models.mistakes import V3_MISTAKES

        return V3_MISTAKES

    def style(self) -> DecoderStyle:
        routing = RoutingRule(
            scoring="sigmoid",
            groups=sym("text_router_groups"),
            group_best=2,
            best_groups=self.config.best_groups,
            corrected=True,
            normalised=self.config.norm_topk,
            floor=True,
        )
        return latent_style(self.config, routing, RotaryTable, as_complex=False)


TARGET: Final = DeepseekV3
