"""DistilBERT: BERT with half the layers, without segments and without a pooler (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart
from costproof.analytic.elementwise import Activation
from costproof.analytic.linear import Linear
from costproof.models.encoding.config import TextEncoderConfig
from costproof.models.encoding.formulas import TextEncoderStyle, masked_words
from costproof.models.encoding.texts import TextTarget

_LAYER: Final = "text.layer"


@dataclass(frozen=True, slots=True)
class DistilBertConfig(TextEncoderConfig):
    """Sizes and the class of transformers; by default DistilBERT-base."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 6
    heads: int = 12
    activation: str = "gelu"
    architecture: str = "DistilBertModel"

    model_type: ClassVar[str] = "distilbert"
    not_null: ClassVar = (
        "attention_dropout", "dropout", "initializer_range", "qa_dropout", "seq_classif_dropout",
        "sinusoidal_pos_embds",
    )  # fmt: skip
    architectures: ClassVar = {
        "DistilBertForMaskedLM": False, "DistilBertModel": False, "DistilBertForSequenceClassification": True,
    }  # fmt: skip
    keys: ClassVar = {
        **TextEncoderConfig.keys,
        "hidden": "dim",
        "intermediate": "hidden_dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "activation": "activation",
    }
    unused_keys: ClassVar = {
        **dict.fromkeys(("dropout", "qa_dropout", "seq_classif_dropout"), "affects only training"),
        "sinusoidal_pos_embds": "what the table of positions begins as decides no cost",
        "tie_weights_": "the class does not read it",
    }


@dataclass(frozen=True, slots=True)
class DistilBert(TextTarget[DistilBertConfig]):
    """Target: ``DistilBertModel``, or a class with a head, with one configuration.

    Source: Sanh et al. 2019, DistilBERT; ``DistilBertModel``, ``DistilBertForMaskedLM``,
    ``DistilBertForSequenceClassification`` (transformers).
    """

    config: DistilBertConfig = field(default_factory=DistilBertConfig)
    name: str = "distilbert"
    model_types: ClassVar[tuple[str, ...]] = ("distilbert",)
    prefix: ClassVar[str] = "distilbert."
    pools: ClassVar[bool] = False

    def style(self) -> TextEncoderStyle:
        """Return the differences of the layers from those of BERT."""
        return TextEncoderStyle(segments=False, added_apart=False, layer_containers=("mlp_dropout",))

    def names(self, path: str) -> Mapping[str, str]:
        """Return the module paths of an encoder at the module path ``path``, by role."""
        layer, embeddings = f"{path}transformer.layer.{{i}}", f"{path}embeddings"
        return {
            "root": "",
            "text": path.rstrip("."),
            "text.embeddings": embeddings,
            **{f"text.{x}": f"{embeddings}.{x}_embeddings" for x in ("word", "position")},
            "text.norm_first": f"{embeddings}.LayerNorm",
            "text.dropout": f"{embeddings}.dropout",
            "text.encoder": f"{path}transformer",
            _LAYER: layer,
            f"{_LAYER}.attention": f"{layer}.attention",
            **{f"{_LAYER}.attention.{x}": f"{layer}.attention.{x}_lin" for x in ("q", "k", "v", "out")},
            f"{_LAYER}.norm1": f"{layer}.sa_layer_norm",
            f"{_LAYER}.mlp": f"{layer}.ffn",
            f"{_LAYER}.mlp.up": f"{layer}.ffn.lin1",
            f"{_LAYER}.mlp.activation": f"{layer}.ffn.activation",
            f"{_LAYER}.mlp.down": f"{layer}.ffn.lin2",
            f"{_LAYER}.mlp_dropout": f"{layer}.ffn.dropout",
            f"{_LAYER}.norm2": f"{layer}.output_layer_norm",
            "dropout": "dropout",
            "pre_classifier": "pre_classifier",
            "classifier": "classifier",
            "cls.dense": "vocab_transform",
            "cls.activation": "activation",
            "cls.norm": "vocab_layer_norm",
            "lm_head": "vocab_projector",
        }

    def head(self) -> tuple[ModulePart, ...]:
        """Return the parts of the head for masked words, or of the classifier on the first token."""
        texts, b, width = sym("B"), sym("b"), sym("text_hidden")
        if self.config.masked:
            return (ModulePart("root"), *masked_words(self.config.activation, holds_bias="lm_head"))
        return (
            ModulePart("pre_classifier", (Linear(texts, width, width, b),)),
            ModulePart("root", (Activation(texts * width, "relu", b),)),
            ModulePart("dropout"),
            ModulePart("classifier", (Linear(texts, width, sym("text_labels"), b),)),
        )


TARGET: Final = DistilBert
