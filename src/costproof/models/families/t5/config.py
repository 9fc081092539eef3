"""The configuration of a T5: everything that decides a cost, and nothing else. The defaults are those of T5-small."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.native import NativeConfig, check_type, yes_or_no
from costproof.models.section import MOST_LAYERS, Section, renamed

_MLPS: Final = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True)}
"""Names in a file -> the activation, and whether the MLP is gated."""
_LEAST_BUCKETS: Final = 4
"""Half of them for each direction, half of those for distances of their own."""


@dataclass(frozen=True, slots=True)
class T5Config(NativeConfig):
    """Sizes, the kind of MLP, and whether the decoder's result is scaled."""

    hidden: int = 512
    head_dim: int = 64
    intermediate: int = 2048
    layers: int = 6
    decoder_layers: int = 6
    heads: int = 8
    vocab: int = 32128
    buckets: int = 32
    mlp: str = "relu"
    scaled: bool = True
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that were read and not used, with the reason."""

    model_type: ClassVar[str] = "t5"
    architecture: ClassVar[str] = "T5ForConditionalGeneration"
    keys: ClassVar = {
        "hidden": "d_model",
        "head_dim": "d_kv",
        "intermediate": "d_ff",
        "heads": "num_heads",
        "vocab": "vocab_size",
        "buckets": "relative_attention_num_buckets",
    }

    @property
    def activation(self) -> str:
        """The activation of the MLPs."""
        return _MLPS[self.mlp][0]

    @property
    def gated(self) -> bool:
        """Whether the MLPs are gated."""
        return _MLPS[self.mlp][1]

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        named = ("hidden", "head_dim", "intermediate", "layers", "decoder_layers", "heads", "vocab", "buckets")
        return {f"text_{name}": getattr(self, name) for name in named}

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return {
            **renamed(self, self.keys),
            "num_layers": self.layers,
            "num_decoder_layers": self.decoder_layers,
            "feed_forward_proj": self.mlp,
            "tie_word_embeddings": self.scaled,
        }

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """A T5 in the value of a file; a key that is left out has the default of the class of transformers."""
        top = Section(data, "$", problems)
        top.waive(dict.fromkeys(("relative_attention_max_distance", "n_positions"), "decides no cost"))
        check_type(top, cls.model_type)
        top.fixed("architectures", [cls.architecture], None, why="no formulas for this class", default=None)
        top.fixed("is_encoder_decoder", True, why="the formulas describe an encoder and a decoder")
        top.fixed("is_decoder", False, why="the formulas describe an encoder and a decoder")
        usual = cls()
        sizes = top.sizes(cls.keys, usual)
        layers = top.integer("num_layers", usual.layers, most=MOST_LAYERS)
        own = top.take("num_decoder_layers", None)
        count = layers if own is None else top.check_integer(own, "num_decoder_layers", most=MOST_LAYERS)
        mlp = str(top.fixed("feed_forward_proj", *_MLPS, why="no formulas for this MLP"))
        activation, gated = _MLPS[mlp]
        # Files that the class saved have what it made of the above, and it takes them over that.
        for key, value in (("dense_act_fn", activation), ("is_gated_act", gated)):
            top.fixed(key, value, why=f"no formulas for an MLP that is {mlp} but for this")
        tied = yes_or_no(top, "tie_word_embeddings", default=True)
        scaled = yes_or_no(top, "scale_decoder_outputs", default=tied)
        config = cls(**sizes, layers=layers, decoder_layers=count, mlp=mlp, scaled=scaled)
        # Of the files of 1.1 the class says that there is one table, and a checkpoint of it may have three.
        own = (("$.tie_word_embeddings", "the class ties the words all the same; a checkpoint may have a head beside"),)
        config = replace(config, waived=(*top.finish(), *(() if tied else own)))
        problems += [] if problems else config.contradictions()
        return config

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class cannot run."""
        if self.buckets >= _LEAST_BUCKETS:
            return []
        where, expected = "$.relative_attention_num_buckets", f"at least {_LEAST_BUCKETS}"
        return [BadInput("too few buckets", where=where, expected=expected, got=self.buckets)]
