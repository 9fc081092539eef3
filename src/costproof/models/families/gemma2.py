"""Gemma 2: norms before and after each block, soft caps, windows in every other layer (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.configs.reader import Section
from costproof.ledger.workload import AttentionKind
from costproof.models.decoding.config import WindowedConfig, pattern_of
from costproof.models.decoding.formulas import ALL_PROJECTIONS, DecoderStyle
from costproof.models.decoding.target import CausalTarget


@dataclass(frozen=True, slots=True)
class Gemma2Config(WindowedConfig):
    """Sizes, attention windows, optional attention biases and soft caps; by default Gemma-2-2b."""

    hidden: int = 2304
    intermediate: int = 9216
    layers: int = 26
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 256
    vocab: int = 256000
    max_positions: int = 8192
    tied: bool = True
    activation: str = "gelu_pytorch_tanh"
    window: int = 4096
    pattern: str = "wf"
    attention_bias: bool = False
    scores_capped: bool = True
    logits_capped: bool = True

    model_type: ClassVar[str] = "gemma2"
    not_null: ClassVar = (*WindowedConfig.not_null, "head_dim", "num_key_value_heads", "query_pre_attn_scalar")
    architecture: ClassVar[str] = "Gemma2ForCausalLM"
    keys: ClassVar = {
        **WindowedConfig.keys,
        "activation": "hidden_activation",
        "attention_bias": "attention_bias",
        "scores_capped": "attn_logit_softcapping",
        "logits_capped": "final_logit_softcapping",
    }
    number_flags: ClassVar = {"scores_capped": 50.0, "logits_capped": 30.0}
    class_defaults: ClassVar = {
        "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    unused_keys: ClassVar = {
        "query_pre_attn_scalar": "decides no cost",
        "hidden_act": "the class reads hidden_activation",
        "sliding_window_size": "the class reads sliding_window",
        "cache_implementation": "the cache of a run is a dynamic one",
    }

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the window length, and which layers have a window."""
        why = "the formulas describe only causal attention"
        top.fixed("use_bidirectional_attention", None, False, why=why)
        window = top.integer("sliding_window", 4096)
        return {"window": window, "pattern": pattern_of(top, sizes["layers"], "wf")}


@dataclass(frozen=True, slots=True)
class Gemma2(CausalTarget[Gemma2Config]):
    """Target: ``Gemma2ForCausalLM`` with one configuration.

    Source: Gemma Team 2024, Gemma 2: Improving Open Language Models at a Practical Size; ``Gemma2ForCausalLM``
    (transformers).
    """

    config: Gemma2Config = field(default_factory=Gemma2Config)
    name: str = "gemma2"
    model_types: ClassVar[tuple[str, ...]] = ("gemma2",)
    # Fused attention has no soft cap.
    attentions: ClassVar[tuple[AttentionKind, ...]] = ("eager",)

    def style(self) -> DecoderStyle:
        return DecoderStyle(
            bias=ALL_PROJECTIONS if self.config.attention_bias else (),
            norm="centred_rms",
            norm_after=True,
            scaled_embeddings=True,
            scores_capped=self.config.scores_capped,
            logits_capped=self.config.logits_capped,
        )


TARGET: Final = Gemma2
