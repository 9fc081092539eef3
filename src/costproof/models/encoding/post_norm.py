"""Encoders of text as BERT has them: tables summed, norms behind the additions, and the head for masked words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Call, Part, numbered
from costproof.analytic.costs import Layer
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.linear import Lent, Linear, LmHead
from costproof.analytic.mlp import Activation
from costproof.analytic.norms import LayerNorm
from costproof.analytic.position_embedding import LearnedPositions, PositionIds
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.symbols import sym
from costproof.models.encoding.config import TextEncoderConfig
from costproof.models.encoding.stage import ALL

_LAYER: Final = "text.layer"


@dataclass(frozen=True, slots=True)
class Style:
    """In what the encoders of two families differ, beside their sizes; the defaults are BERT's."""

    segments: bool = True
    """Whether every token gets a row of a table of segments as well."""
    own_positions: bool = False
    """Whether positions are worked out for every text, from its ids."""
    added_apart: bool = True
    """Whether each addition runs in a module of its own."""
    head_first: bool = False
    """Whether the head for masked words owns the table of words."""
    in_layers: tuple[str, ...] = ("block", "attention_dropout", "mlp_dropout")
    """Modules of a layer that compute nothing."""


def encoder(config: TextEncoderConfig, style: Style, *, eager: bool) -> tuple[Part, ...]:
    """From ids to what the last layer returns, on B texts of S tokens.

    Args:
        eager: whether attention is written out.
    """
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
    one = TransformerLayer(width, attention, mlp, norm="layer", norm_last=True, added_apart=style.added_apart)
    layer = (*one.parts(_LAYER, call), *(Part(f"{_LAYER}.{name}") for name in style.in_layers))
    added = LearnedPositions(texts, length, width, b, others=int(style.segments), each=style.own_positions)
    lent = config.masked and style.head_first
    words = Embedding(call.rows, sym("text_vocab"), width, b, lent=lent, read_whole=config.masked)
    positions = call.rows if style.own_positions else length
    segments = Part("text.token_type", (Embedding(call.rows, sym("text_types"), width, b),))
    return (
        *(Part(role) for role in ("text", "text.encoder", "text.dropout")),
        Part("text.embeddings", (added, PositionIds(sym("text_positions"), 1 + int(style.segments)))),
        Part("text.word", (words,)),
        Part("text.position", (Embedding(positions, sym("text_positions"), width, b),)),
        *((segments,) if style.segments else ()),
        Part("text.norm_first", (LayerNorm(call.rows, width, b),)),
        *(part for i in range(config.layers) for part in numbered(i, layer)),
    )


def masked_words(
    function: str, *, holds_bias: str, activates: str = "cls.activation", owns_words: bool = False
) -> tuple[Part, ...]:
    """Logits of every token: a layer, a norm, and the embedding's table once more.

    Args:
        function: the activation.
        holds_bias: role of the module that owns a bias for every word.
        activates: role of the module in which the activation runs.
        owns_words: whether the table is the head's, and the embedding reads it.
    """
    texts, length, b, width, vocab = sym("B"), sym("S"), sym("b"), sym("text_hidden"), sym("text_vocab")
    rows = texts * length
    found: dict[str, tuple[Layer, ...]] = {
        "cls.dense": (Linear(rows, width, width, b),),
        "cls.norm": (LayerNorm(rows, width, b),),
        "lm_head": (LmHead(texts, length, width, vocab, b, tied=not owns_words, lent_bias=True),),
    }
    for role, layer in ((activates, Activation(rows * width, function, b)), (holds_bias, Lent(vocab, b))):
        found[role] = (*found.get(role, ()), layer)
    return tuple(Part(role, layers) for role, layers in found.items())
