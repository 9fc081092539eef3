"""Qwen3-MoE: Qwen3 with a mixture of experts in all or some layers (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Final

from costproof.analytic.experts import RoutingRule
from costproof.configs.config import yes_or_no
from costproof.configs.reader import Section
from costproof.models import settings
from costproof.models.decoding.config import UNUSED_ROUTER_KEYS, MixtureConfig, experts_of, shortest, window_of_all
from costproof.models.decoding.formulas import ALL_PROJECTIONS, DecoderStyle
from costproof.models.decoding.target import CausalTarget
from costproof.models.target import Setting


@dataclass(frozen=True, slots=True)
class Qwen3MoeConfig(MixtureConfig):
    """Sizes, the layers with experts, and whether router weights are renormalised; by default Qwen3-30B-A3B."""

    hidden: int = 2048
    intermediate: int = 6144
    layers: int = 48
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 151936
    max_positions: int = 40960
    pattern: str = "w"
    experts: int = 128
    top_k: int = 8
    attention_bias: bool = False
    norm_topk: bool = True
    """Whether the weights of a token's experts are divided by their sum."""
    expert_width: int = 768
    kinds: str = "m"
    """Kinds of layers, repeated over the depth: ``m`` for a mixture of experts, ``d`` for a dense MLP."""

    not_drawn: ClassVar = {"pattern": "the class gives all layers the same window"}
    model_type: ClassVar[str] = "qwen3_moe"
    not_null: ClassVar = (
        *MixtureConfig.not_null, "attention_dropout", "head_dim", "num_key_value_heads", "router_aux_loss_coef",
    )  # fmt: skip
    architecture: ClassVar[str] = "Qwen3MoeForCausalLM"
    heads_divide: ClassVar = False
    one_mask: ClassVar = True
    keys: ClassVar = {
        **MixtureConfig.keys,
        "experts": "num_experts",
        "expert_width": "moe_intermediate_size",
        "attention_bias": "attention_bias",
        "norm_topk": "norm_topk_prob",
    }
    class_defaults: ClassVar = {"num_key_value_heads": 4, "max_position_embeddings": 32768}
    unused_keys: ClassVar = {**UNUSED_ROUTER_KEYS, "max_window_layers": "the class does not read it"}
    patterns: ClassVar[tuple[str, ...]] = ("w",)

    def routed(self) -> tuple[bool, ...]:
        return tuple(kind == "m" for kind in (self.kinds * self.layers)[: self.layers])

    def symbols(self) -> dict[str, int]:
        own = {"text_intermediate": self.intermediate, "text_moe": self.expert_width}
        return {**MixtureConfig.symbols(self), **own}

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the experts, the layers that have them, and the window of all layers if ``use_sliding_window``."""
        windows = window_of_all(top, 4096)
        return {
            **experts_of(top, cls(), "num_local_experts"),
            "expert_width": top.integer(cls.keys["expert_width"], 768),
            "kinds": _kinds(top, sizes["layers"]),
            "pattern": "w",
            "window": windows["window"] if yes_or_no(top, "use_sliding_window") else 0,
        }

    @classmethod
    def draw_fields(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """Draw random settings of the experts, and of the layers that have them, for a proof."""
        common = MixtureConfig.draw_fields(sizes, rng)
        return {
            **common,
            "intermediate": sizes["text_intermediate"],
            "expert_width": common["intermediate"],
            "kinds": rng.choice(("m", "m", "dm", "md")),
        }

    def native(self) -> dict[str, Any]:
        dense = [i for i, routed in enumerate(self.routed()) if not routed]
        return {**MixtureConfig.native(self), "mlp_only_layers": dense, "use_sliding_window": any(self.windows())}


def _kinds(top: Section, layers: int) -> str:
    """Read which layers have experts: every ``decoder_sparse_step``-th, unless listed in ``mlp_only_layers``."""
    every, dense = top.integer("decoder_sparse_step", 1), top.integers("mlp_only_layers", (), least=0)
    return shortest("".join("d" if i in dense or (i + 1) % every else "m" for i in range(layers)))


@dataclass(frozen=True, slots=True)
class Qwen3Moe(CausalTarget[Qwen3MoeConfig]):
    """Target: ``Qwen3MoeForCausalLM`` with one configuration.

    Source: Qwen Team 2025, Qwen3 Technical Report; ``Qwen3MoeForCausalLM`` (transformers).
    """

    config: Qwen3MoeConfig = field(default_factory=Qwen3MoeConfig)
    name: str = "qwen3-moe"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_moe",)
    extra_settings: ClassVar[tuple[Setting, ...]] = (settings.EXPERTS,)

    def style(self) -> DecoderStyle:
        return DecoderStyle(
            bias=ALL_PROJECTIONS if self.config.attention_bias else (),
            qk_norm=True,
            routing=RoutingRule(normalised=self.config.norm_topk, scaled=False, narrow=True, upcast=False),
        )


TARGET: Final = Qwen3Moe
