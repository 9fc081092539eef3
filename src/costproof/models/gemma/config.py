"""The configuration of a Gemma: everything that decides a cost, and nothing else. The defaults are Gemma-7b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.decoding.config import TextConfig
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class GemmaConfig(TextConfig):
    """Sizes, biases of attention, and whether the output projection is tied."""

    hidden: int = 3072
    intermediate: int = 24576
    layers: int = 28
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 256
    vocab: int = 256000
    max_positions: int = 8192
    tied: bool = True
    activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False

    model_type: ClassVar[str] = "gemma"
    architecture: ClassVar[str] = "GemmaForCausalLM"
    heads_divide: ClassVar = False
    keys: ClassVar = {**TextConfig.keys, "attention_bias": "attention_bias"}
    left_out: ClassVar = {
        "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    beside: ClassVar = {"hidden_activation": "the class reads hidden_act"}

    def __post_init__(self) -> None:
        # The first files of Gemma say "gelu", and mean the tanh form: the class takes it for that.
        if self.activation == "gelu":
            object.__setattr__(self, "activation", "gelu_pytorch_tanh")

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """None; attention sees what came before."""
        why = "the formulas describe attention to what came before alone"
        top.fixed("use_bidirectional_attention", None, False, why=why)
        return {}
