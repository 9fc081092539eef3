"""The configuration of a GPT-OSS: all that decides a cost, and nothing else; by default gpt-oss-120b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from costproof.models.decoding.config import pattern_of
from costproof.models.decoding.mixtures import BESIDE, MixtureConfig, experts_of
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class GptOssConfig(MixtureConfig):
    """Sizes, the layers with a window, and biases of attention."""

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
    architecture: ClassVar[str] = "GptOssForCausalLM"
    heads_divide: ClassVar = False
    keys: ClassVar[Mapping[str, str]] = {**MixtureConfig.keys, "attention_bias": "attention_bias"}
    left_out: ClassVar = {
        "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "attention_bias": True,
    }  # fmt: skip
    beside: ClassVar = {
        **BESIDE,
        **dict.fromkeys(("swiglu_alpha", "swiglu_limit"), "decides no cost"),
        **dict.fromkeys(("experts_per_token", "initial_context_length"), "the class does not read it"),
    }

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Experts, window, and the layers that have one: every other unless the file says else."""
        window, pattern = top.integer("sliding_window", 128), pattern_of(top, sizes["layers"], "wf")
        return {**experts_of(top, cls(), "num_experts"), "window": window, "pattern": pattern}

    @classmethod
    def random(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """The fields of a random configuration that are not drawn as for every decoder."""
        return {**MixtureConfig.random(sizes, rng)}
