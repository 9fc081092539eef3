"""The closed formulas of RoBERTa: those of BERT with positions of every text, and other heads."""

from __future__ import annotations

from collections.abc import Mapping

from costproof.analytic.compose import Part
from costproof.analytic.linear import Linear
from costproof.analytic.mlp import Activation
from costproof.analytic.pooler import FirstTokenPooler
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.post_norm import Style, encoder, masked_words
from costproof.models.encoding.stage import ledger
from costproof.models.families.bert import formulas as bert
from costproof.models.families.roberta.config import RobertaConfig


def names(path: str) -> Mapping[str, str]:
    """Roles -> module paths, for an encoder whose modules have paths that begin so."""
    return {
        **bert.names(path),
        "cls.predictions": "lm_head",
        "cls.dense": "lm_head.dense",
        "cls.norm": "lm_head.layer_norm",
        "lm_head": "lm_head.decoder",
        "classifier.dense": "classifier.dense",
        "classifier.dropout": "classifier.dropout",
        "classifier.out": "classifier.out_proj",
    }


def formulas(config: RobertaConfig, *, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        eager: whether attention is written out.

    Source: Liu et al. 2019, RoBERTa; ``RobertaModel``, ``RobertaForMaskedLM``, ``RobertaForSequenceClassification``
    (transformers).
    """
    texts, b, width, labels = sym("B"), sym("b"), sym("text_hidden"), sym("text_labels")
    parts = encoder(config, Style(own_positions=True, head_first=config.head_first), eager=eager)
    if config.masked:
        # Whatever the layers have, the head has this activation.
        head = masked_words(
            "gelu", holds_bias="cls.predictions", activates="cls.predictions", owns_words=config.head_first
        )
        return ledger((Part("root"), *parts, *head), names("roberta."), texts * sym("S") * sym("text_vocab") * b)
    if not config.labels:
        pooler = FirstTokenPooler(width, width, "tanh").parts("text.pooler", texts, b)
        return ledger((*parts, *pooler), names(""), texts * (sym("S") + 1) * width * b)
    head = (
        Part("classifier", (Activation(texts * width, "tanh", b),)),
        Part("classifier.dense", (Linear(texts, width, width, b),)),
        Part("classifier.dropout", times=2),
        Part("classifier.out", (Linear(texts, width, labels, b),)),
    )
    return ledger((Part("root"), *parts, *head), names("roberta."), texts * labels * b)
