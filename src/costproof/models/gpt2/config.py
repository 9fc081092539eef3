"""The configuration of a GPT-2: everything that decides a cost, and nothing else; by default the smallest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.config import TextConfig
from costproof.models.section import Section

_SUMMARY = ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")


@dataclass(frozen=True, slots=True)
class Gpt2Config(TextConfig):
    """Sizes, and whether the output projection is the embedding's table; the heads share the width."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int = 50257
    max_positions: int = 1024
    tied: bool = True
    activation: str = "gelu_new"

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    keys: ClassVar = {
        "hidden": "n_embd",
        "intermediate": "n_inner",
        "layers": "n_layer",
        "heads": "n_head",
        "vocab": "vocab_size",
        "max_positions": "n_positions",
        "tied": "tie_word_embeddings",
        "activation": "activation_function",
    }
    ranges: ClassVar = {"text_positions": range(128, 228)}
    follows: ClassVar = {"text_head_dim": "text_share"}
    left_out: ClassVar = {"n_positions": 1024, "tie_word_embeddings": True, "activation_function": "gelu_new"}
    beside: ClassVar = {
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), "of training alone"),
        **dict.fromkeys(("layer_norm_epsilon", "scale_attn_weights"), "decides no cost"),
        "scale_attn_by_inverse_layer_idx": "decides no cost",
        **{f"summary_{x}": "of a class with a head for a summary" for x in _SUMMARY},
        **dict.fromkeys(("n_ctx", "n_special", "predict_special_tokens"), "the class does not read it"),
    }

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        return {**TextConfig.symbols(self), "text_positions": self.max_positions}

    def __post_init__(self) -> None:
        """Every head has keys and values of its own, and its share of the width."""
        object.__setattr__(self, "kv_heads", self.heads)
        object.__setattr__(self, "head_dim", self.hidden // self.heads)

    @classmethod
    def sizes(cls, top: Section) -> dict[str, Any]:
        """The sizes; the inner width of the MLP is four times the width unless the file says else."""
        for key in ("add_cross_attention", "reorder_and_upcast_attn"):
            top.fixed(key, False, why="the formulas do not describe this")
        found = top.sizes({field: cls.keys[field] for field in ("hidden", "layers", "heads", "vocab")})
        inner = top.take("n_inner", None)
        return {**found, "intermediate": 4 * found["hidden"] if inner is None else top.check_integer(inner, "n_inner")}

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses."""
        if self.hidden % self.heads == 0:
            return []
        expected = f"a divisor of {self.hidden}"
        return [BadInput("the heads must divide the width", where="$.n_head", expected=expected, got=self.heads)]
