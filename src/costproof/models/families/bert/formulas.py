"""The closed formulas of BERT: three tables summed, norms behind the additions, and one of three heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.analytic.compose import Part
from costproof.analytic.linear import Linear
from costproof.analytic.pooler import FirstTokenPooler
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.post_norm import Style, encoder, masked_words
from costproof.models.encoding.stage import ledger
from costproof.models.families.bert.config import BertConfig

_LAYER: Final = "text.layer"
_HEAD: Final = "cls.predictions"


def names(path: str) -> Mapping[str, str]:
    """Roles -> module paths, for an encoder whose modules have paths that begin so."""
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


def formulas(config: BertConfig, *, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        eager: whether attention is written out.

    Source: Devlin et al. 2018, BERT; ``BertModel``, ``BertForMaskedLM``, ``BertForSequenceClassification``
    (transformers).
    """
    texts, b, width = sym("B"), sym("b"), sym("text_hidden")
    parts = encoder(config, Style(), eager=eager)
    pooler = FirstTokenPooler(width, width, "tanh").parts("text.pooler", texts, b)
    if config.masked:
        head = (Part("cls"), Part("cls.transform"), *masked_words(config.activation, holds_bias="cls.predictions"))
        return ledger((Part("root"), *parts, *head), names("bert."), texts * sym("S") * sym("text_vocab") * b)
    if not config.labels:
        return ledger((*parts, *pooler), names(""), texts * (sym("S") + 1) * width * b)
    classifier = Part("classifier", (Linear(texts, width, sym("text_labels"), b),))
    whole = (Part("root"), *parts, *pooler, Part("dropout"), classifier)
    return ledger(whole, names("bert."), texts * sym("text_labels") * b)
