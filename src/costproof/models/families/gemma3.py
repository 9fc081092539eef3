"""Gemma 3, text: norms before and after each block, five windowed layers to one full (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.configs.reader import Section
from costproof.models.decoding.config import WindowedConfig, pattern_of
from costproof.models.decoding.formulas import ALL_PROJECTIONS, DecoderStyle
from costproof.models.decoding.target import CausalTarget


@dataclass(frozen=True, slots=True)
class Gemma3Config(WindowedConfig):
    """Sizes, attention windows, optional attention biases and logit cap; by default Gemma-3-1b (text)."""

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
    not_null: ClassVar = (*WindowedConfig.not_null, "head_dim", "num_key_value_heads", "query_pre_attn_scalar")
    architecture: ClassVar[str] = "Gemma3ForCausalLM"
    keys: ClassVar = {
        **WindowedConfig.keys,
        "activation": "hidden_activation",
        "attention_bias": "attention_bias",
        "logits_capped": "final_logit_softcapping",
    }
    number_flags: ClassVar = {"logits_capped": 30.0}
    class_defaults: ClassVar = {
        "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    unused_keys: ClassVar = {
        **dict.fromkeys(
            ("query_pre_attn_scalar", "rope_local_base_freq", "_sliding_window_pattern"), "decides no cost"
        ),
        "attn_logit_softcapping": "the class does not read it",
        "cache_implementation": "the cache of a run is a dynamic one",
    }
    patterns: ClassVar[tuple[str, ...]] = ("f", "w", "wf", "wwf")

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the window and which layers have it; every ``sliding_window_pattern``-th layer has full attention."""
        why = "the formulas describe only causal attention"
        top.fixed("use_bidirectional_attention", False, None, why=why)
        every = top.integer("sliding_window_pattern", 6)
        window = top.integer("sliding_window", 4096)
        layers = sizes["layers"]
        return {"window": window, "pattern": pattern_of(top, layers, "w" * min(every - 1, layers) + "f")}


@dataclass(frozen=True, slots=True)
class Gemma3(CausalTarget[Gemma3Config]):
    """Target: ``Gemma3ForCausalLM`` with one configuration.

    Source: Gemma Team 2025, Gemma 3 Technical Report; ``Gemma3ForCausalLM`` (transformers).
    """

    config: Gemma3Config = field(default_factory=Gemma3Config)
    name: str = "gemma3"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3_text",)

    def style(self) -> DecoderStyle:
        return DecoderStyle(
            bias=ALL_PROJECTIONS if self.config.attention_bias else (),
            qk_norm=True,
            norm="centred_rms",
            norm_after=True,
            scaled_embeddings=True,
            logits_capped=self.config.logits_capped,
            # Layers with a window and layers without one rotate by different frequencies.
            rotary_tables=len({*self.config.windows()}),
        )


TARGET: Final = Gemma3
