"""The configuration of a Gemma 2: everything that decides a cost, and nothing else. The defaults are Gemma-2-2b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.decoding.config import WindowedConfig, pattern_of
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class Gemma2Config(WindowedConfig):
    """Sizes, windows, biases of attention, soft caps, and whether the output projection is tied."""

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
    architecture: ClassVar[str] = "Gemma2ForCausalLM"
    keys: ClassVar = {
        **WindowedConfig.keys,
        "activation": "hidden_activation",
        "attention_bias": "attention_bias",
        "scores_capped": "attn_logit_softcapping",
        "logits_capped": "final_logit_softcapping",
    }
    numbers: ClassVar = {"scores_capped": 50.0, "logits_capped": 30.0}
    left_out: ClassVar = {
        "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    beside: ClassVar = {
        "query_pre_attn_scalar": "decides no cost",
        "hidden_act": "the class reads hidden_activation",
        "sliding_window_size": "the class reads sliding_window",
        "cache_implementation": "the cache of a run is a dynamic one",
    }

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Window and pattern."""
        why = "the formulas describe attention to what came before alone"
        top.fixed("use_bidirectional_attention", None, False, why=why)
        window = top.integer("sliding_window", 4096)
        return {"window": window, "pattern": pattern_of(top, sizes["layers"], "wf")}
