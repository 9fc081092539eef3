"""The closed formulas of BERT: three tables summed, norms behind the additions, and one of three heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Call, Part, numbered
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.linear import Lent, Linear, LmHead
from costproof.analytic.mlp import Activation
from costproof.analytic.norms import LayerNorm
from costproof.analytic.pooler import FirstTokenPooler
from costproof.analytic.position_embedding import LearnedPositions
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.bert.config import BertConfig
from costproof.models.encoding.stage import ALL, ledger

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
    pooler = FirstTokenPooler(width, width, "tanh").parts("text.pooler", texts, b)
    if config.architecture == "BertModel":
        return ledger((*_encoder(config, eager=eager), *pooler), names(""), texts * (sym("S") + 1) * width * b)
    whole = (Part("root"), *_encoder(config, eager=eager))
    if config.architecture == "BertForMaskedLM":
        return ledger((*whole, *_masked_words(config)), names("bert."), texts * sym("S") * sym("text_vocab") * b)
    classifier = Part("classifier", (Linear(texts, width, sym("text_labels"), b),))
    return ledger((*whole, *pooler, Part("dropout"), classifier), names("bert."), texts * sym("text_labels") * b)


def _encoder(config: BertConfig, *, eager: bool) -> tuple[Part, ...]:
    """From ids to what the last layer returns, on B texts of S tokens."""
    texts, length, b, width, heads = sym("B"), sym("S"), sym("b"), sym("text_hidden"), sym("text_heads")
    call = Call(texts, length, b)
    attention = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("text_head_dim"),
        inner=width,
        bias=ALL,
        cached=False,
        written_out=eager,
    )
    mlp = Mlp(width, sym("text_intermediate"), config.activation)
    masked = config.architecture == "BertForMaskedLM"
    layer = (
        *TransformerLayer(width, attention, mlp, norm="layer", added_apart=True).parts(_LAYER, call),
        *(Part(f"{_LAYER}.{name}") for name in ("block", "attention_dropout", "mlp_dropout")),
    )
    return (
        *(Part(role) for role in ("text", "text.encoder", "text.dropout")),
        Part("text.embeddings", (LearnedPositions(texts, length, width, b, others=1),)),
        Part("text.word", (Embedding(call.rows, sym("text_vocab"), width, b, read_whole=masked),)),
        Part("text.position", (Embedding(length, sym("text_positions"), width, b),)),
        Part("text.token_type", (Embedding(call.rows, sym("text_types"), width, b),)),
        Part("text.norm_first", (LayerNorm(call.rows, width, b),)),
        *(part for i in range(config.layers) for part in numbered(i, layer)),
    )


def _masked_words(config: BertConfig) -> tuple[Part, ...]:
    """Logits of every token: a layer, a norm, and the embedding's table once more."""
    texts, length, b, width, vocab = sym("B"), sym("S"), sym("b"), sym("text_hidden"), sym("text_vocab")
    rows = texts * length
    return (
        Part("cls"),
        Part("cls.predictions", (Lent(vocab, b),)),
        Part("cls.transform"),
        Part("cls.dense", (Linear(rows, width, width, b),)),
        Part("cls.activation", (Activation(rows * width, config.activation, b),)),
        Part("cls.norm", (LayerNorm(rows, width, b),)),
        Part("lm_head", (LmHead(texts, length, width, vocab, b, tied=True, lent_bias=True),)),
    )
