"""The configuration of a Gemma 3 for text: all that decides a cost, and nothing else. The defaults are Gemma-3-1b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.decoding.config import WindowedConfig, pattern_of
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class Gemma3Config(WindowedConfig):
    """Sizes, windows, biases of attention, the cap of the logits, and whether the output projection is tied."""

    hidden: int = 1152
    intermediate: int = 6912
    layers: int = 26
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 256
    vocab: int = 262144
    max_positions: int = 32768
    tied: bool = True
    activation: str = "gelu_pytorch_tanh"
    window: int = 512
    pattern: str = "wwwwwf"
    attention_bias: bool = False
    logits_capped: bool = False

    model_type: ClassVar[str] = "gemma3_text"
    architecture: ClassVar[str] = "Gemma3ForCausalLM"
    keys: ClassVar = {
        **WindowedConfig.keys,
        "activation": "hidden_activation",
        "attention_bias": "attention_bias",
        "logits_capped": "final_logit_softcapping",
    }
    numbers: ClassVar = {"logits_capped": 30.0}
    left_out: ClassVar = {
        "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    beside: ClassVar = {
        **dict.fromkeys(
            ("query_pre_attn_scalar", "rope_local_base_freq", "_sliding_window_pattern"), "decides no cost"
        ),
        "attn_logit_softcapping": "the class does not read it",
        "cache_implementation": "the cache of a run is a dynamic one",
    }
    patterns: ClassVar[tuple[str, ...]] = ("f", "w", "wf", "wwf")

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Window and pattern; ``sliding_window_pattern`` says which layers have none: every so many."""
        why = "the formulas describe attention to what came before alone"
        top.fixed("use_bidirectional_attention", False, None, why=why)
        every = top.integer("sliding_window_pattern", 6)
        window = top.integer("sliding_window", 4096)
        return {"window": window, "pattern": pattern_of(top, sizes["layers"], "w" * (every - 1) + "f")}
