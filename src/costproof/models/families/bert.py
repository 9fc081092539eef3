"""BERT: encoder of text, norms after the additions; masked words, classes or a pooler (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart
from costproof.analytic.linear import Linear
from costproof.analytic.pooling import FirstTokenPooler
from costproof.models.encoding.config import TextEncoderConfig
from costproof.models.encoding.formulas import TextEncoderStyle, masked_words
from costproof.models.encoding.texts import TextTarget

_LAYER: Final = "text.layer"
_HEAD: Final = "cls.predictions"


def bert_names(path: str) -> Mapping[str, str]:
    """Return the module paths of an encoder at the module path ``path``, by role."""
    layer, embeddings = f"{path}encoder.layer.{{i}}", f"{path}embeddings"
    own, attended = f"{layer}.attention.self", f"{layer}.attention.output"
    return {
        "root": "",
        "text": path.rstrip("."),
        "text.embeddings": embeddings,
        **{f"text.{x}": f"{embeddings}.{x}_embeddings" for x in ("word", "position", "token_type")},
        "text.norm_first": f"{embeddings}.LayerNorm",
        "text.dropout": f"{embeddings}.dropout",
        "text.encoder": f"{path}encoder",
        _LAYER: layer,
        f"{_LAYER}.block": f"{layer}.attention",
        f"{_LAYER}.attention": own,
        **{f"{_LAYER}.attention.{x}": f"{own}.{y}" for x, y in zip("qkv", ("query", "key", "value"), strict=True)},
        f"{_LAYER}.attention.out": f"{attended}.dense",
        f"{_LAYER}.attention_sum": attended,
        f"{_LAYER}.attention_dropout": f"{attended}.dropout",
        f"{_LAYER}.norm1": f"{attended}.LayerNorm",
        f"{_LAYER}.mlp": f"{layer}.intermediate",
        f"{_LAYER}.mlp.up": f"{layer}.intermediate.dense",
        f"{_LAYER}.mlp.activation": f"{layer}.intermediate.intermediate_act_fn",
        f"{_LAYER}.mlp.down": f"{layer}.output.dense",
        f"{_LAYER}.mlp_sum": f"{layer}.output",
        f"{_LAYER}.mlp_dropout": f"{layer}.output.dropout",
        f"{_LAYER}.norm2": f"{layer}.output.LayerNorm",
        "text.pooler": f"{path}pooler",
        "text.pooler.dense": f"{path}pooler.dense",
        "text.pooler.activation": f"{path}pooler.activation",
        "dropout": "dropout",
        "classifier": "classifier",
        "cls": "cls",
        "cls.predictions": _HEAD,
        "cls.transform": f"{_HEAD}.transform",
        "cls.dense": f"{_HEAD}.transform.dense",
        "cls.activation": f"{_HEAD}.transform.transform_act_fn",
        "cls.norm": f"{_HEAD}.transform.LayerNorm",
        "lm_head": f"{_HEAD}.decoder",
    }


@dataclass(frozen=True, slots=True)
class BertConfig(TextEncoderConfig):
    """Sizes and the class of transformers; by default BERT-base."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "gelu"
    architecture: str = "BertModel"
    types: int = 2
    """Number of segment types."""

    model_type: ClassVar[str] = "bert"
    not_null: ClassVar = (
        "attention_probs_dropout_prob", "hidden_dropout_prob", "initializer_range", "layer_norm_eps", "use_cache",
    )  # fmt: skip
    architectures: ClassVar = {"BertForMaskedLM": False, "BertModel": False, "BertForSequenceClassification": True}
    keys: ClassVar = {**TextEncoderConfig.keys, "types": "type_vocab_size"}
    unused_keys: ClassVar = {
        "classifier_dropout": "affects only training",
        "position_embedding_type": "the class does not read it",
        "gradient_checkpointing": "affects only training",
    }

    def sizes(self) -> dict[str, int]:
        return TextEncoderConfig.sizes(self) | {"types": self.types}


@dataclass(frozen=True, slots=True)
class Bert(TextTarget[BertConfig]):
    """Target: ``BertModel``, or a class with a head, with one configuration.

    Source: Devlin et al. 2018, BERT; ``BertModel``, ``BertForMaskedLM``, ``BertForSequenceClassification``
    (transformers).
    """

    config: BertConfig = field(default_factory=BertConfig)
    name: str = "bert"
    model_types: ClassVar[tuple[str, ...]] = ("bert",)
    prefix: ClassVar[str] = "bert."

    def style(self) -> TextEncoderStyle:
        """Return the default style, which is that of BERT."""
        return TextEncoderStyle()

    def names(self, path: str) -> Mapping[str, str]:
        return bert_names(path)

    def head(self) -> tuple[ModulePart, ...]:
        """Return the parts of the head for masked words, or of the classifier on the pooled token."""
        texts, b, width = sym("B"), sym("b"), sym("text_hidden")
        if self.config.masked:
            words = masked_words(self.config.activation, holds_bias="cls.predictions")
            return (*map(ModulePart, ("root", "cls", "cls.transform")), *words)
        pooler = FirstTokenPooler(width, width, "tanh").parts("text.pooler", texts, b)
        classifier = ModulePart("classifier", (Linear(texts, width, sym("text_labels"), b),))
        return (ModulePart("root"), *pooler, ModulePart("dropout"), classifier)

    @classmethod
    def draw_fields(cls, p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """Return the drawn number of segment types."""
        return {"types": p["text_types"]}


TARGET: Final = Bert
