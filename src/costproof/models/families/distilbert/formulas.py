"""The closed formulas of DistilBERT: those of BERT without segments, with other modules and heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.analytic.compose import Part
from costproof.analytic.linear import Linear
from costproof.analytic.mlp import Activation
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.post_norm import Style, encoder, masked_words
from costproof.models.encoding.stage import ledger
from costproof.models.families.distilbert.config import DistilBertConfig

_LAYER: Final = "text.layer"
_STYLE: Final = Style(segments=False, added_apart=False, in_layers=("mlp_dropout",))


def names(path: str) -> Mapping[str, str]:
    """Roles -> module paths, for an encoder whose modules have paths that begin so."""
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


def formulas(config: DistilBertConfig, *, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        eager: whether attention is written out.

    Source: Sanh et al. 2019, DistilBERT; ``DistilBertModel``, ``DistilBertForMaskedLM``,
    ``DistilBertForSequenceClassification`` (transformers).
    """
    texts, b, width, labels = sym("B"), sym("b"), sym("text_hidden"), sym("text_labels")
    parts = encoder(config, _STYLE, eager=eager)
    if config.masked:
        head = masked_words(config.activation, holds_bias="lm_head")
        return ledger((Part("root"), *parts, *head), names("distilbert."), texts * sym("S") * sym("text_vocab") * b)
    if not config.labels:
        return ledger(parts, names(""), texts * sym("S") * width * b)
    head = (
        Part("root", (Activation(texts * width, "relu", b),)),
        Part("pre_classifier", (Linear(texts, width, width, b),)),
        Part("dropout"),
        Part("classifier", (Linear(texts, width, labels, b),)),
    )
    return ledger((*parts, *head), names("distilbert."), texts * labels * b)
