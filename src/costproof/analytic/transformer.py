"""Layers of transformers, dense, mixtures and encoders, and a whole decoder of them."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import CONTAINER, Call, Part, numbered
from costproof.analytic.costs import Layer, Size
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mixture, Mlp
from costproof.analytic.latent_attention import LatentBlock
from costproof.analytic.layer_scale import LayerScale
from costproof.analytic.linear import LmHead
from costproof.analytic.norms import NORMS, NormKind
from costproof.analytic.residual import Residual
from costproof.analytic.rotary import RotaryTable


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """x + attention(norm(x)), then the same with cross attention if any, then with an MLP or a mixture.

    A dense decoder layer has an :class:`Mlp`, gated or not, one of a mixture of experts a :class:`Mixture`;
    an encoder layer (ViT, CLIP) layer norms, biases, an MLP, no rotation and no cache. A norm after
    attention and MLP costs what one before them does; one after the additions (BERT, BART) changes what
    they read.

    Roles: ``.norm1``, ``.attention``, ``.cross_norm``, ``.cross``, ``.norm2``, ``.mlp`` below its own, and
    ``.norm1_after``, ``.norm2_after`` where attention and MLP are normalised once more before they are added.
    """

    width: Size
    attention: AttentionBlock | LatentBlock
    feed_forward: Mlp | Mixture
    norm: NormKind = "rms"
    norm_last: bool = False
    """Whether each norm follows its addition."""
    norm_after: bool = False
    """Whether attention and MLP have a norm behind them as well, before the addition."""
    cross: AttentionBlock | None = None
    layer_scale: bool = False
    """Whether a learned number for every channel scales what attention and MLP add: ``.scale1``, ``.scale2``."""
    added_apart: bool = False
    """Whether each addition runs in a module of its own: ``.attention_sum``, ``.cross_sum``, ``.mlp_sum``."""
    beside: tuple[Layer, ...] = ()
    """What else runs in the module of the layer."""

    def parts(self, role: str, call: Call, attended: Call | None = None) -> tuple[Part, ...]:
        """Its modules.

        Args:
            attended: the call that attention sees, where it cuts the tokens up otherwise (windows).
        """
        b, rows = call.item_bytes, call.rows
        norm, scale = NORMS[self.norm](rows, self.width, b), LayerScale(rows, self.width, b)
        cross: tuple[Part, ...] = ()
        if self.cross is not None:
            cross = (Part(f"{role}.cross_norm", (norm,)), *self.cross.cross_parts(f"{role}.cross", call))
        residual = Residual(rows * self.width, 3 if cross else 2, b, chained=not self.norm_last)
        one = (Residual(rows * self.width, 1, b),)
        apart = ("attention", *(("cross",) if cross else ()), "mlp") if self.added_apart else ()
        return (
            Part(role, (self.beside or (CONTAINER,)) if self.added_apart else (residual, *self.beside)),
            *(Part(f"{role}.{which}_sum", one) for which in apart),
            Part(f"{role}.norm1", (norm,)),
            *self.attention.parts(f"{role}.attention", attended or call),
            *((Part(f"{role}.norm1_after", (norm,)),) if self.norm_after else ()),
            *((Part(f"{role}.scale1", (scale,)),) if self.layer_scale else ()),
            *cross,
            Part(f"{role}.norm2", (norm,)),
            *self.feed_forward.parts(f"{role}.mlp", rows, b),
            *((Part(f"{role}.norm2_after", (norm,)),) if self.norm_after else ()),
            *((Part(f"{role}.scale2", (scale,)),) if self.layer_scale else ()),
        )


@dataclass(frozen=True, slots=True)
class Decoder:
    """From token ids to logits: embedding, layers, last norm, output projection.

    Roles: ``.embedding``, ``.rotary``, ``.layer``, ``.norm`` below its own, and ``lm_head``.
    """

    width: Size
    vocabulary: Size
    layers: tuple[TransformerLayer, ...]
    table: Size = 0
    """Rotated elements of a head, where one module makes cosines and sines for all layers; 0: none does."""
    table_kind: type[RotaryTable] = RotaryTable
    own_positions: bool = False
    """Whether every sequence has positions of its own."""
    tables: int = 1
    """How often it does: once for every kind of layer with frequencies of its own."""
    norm: NormKind = "rms"
    tied: bool = False
    """Whether the output projection reads the embedding's table."""
    scaled: bool = False
    """Whether a constant scales the embeddings."""

    def parts(self, role: str, call: Call, positions: Size) -> tuple[Part, ...]:
        """Its modules.

        Args:
            positions: positions per sequence that get logits.
        """
        b, rows = call.item_bytes, call.rows
        table = self.table_kind(rows if self.own_positions else call.tokens, self.table, b)
        embedding = Embedding(rows, self.vocabulary, self.width, b, self.scaled, read_whole=self.tied)
        return (
            Part(f"{role}.embedding", (embedding,)),
            *((Part(f"{role}.rotary", (table,) * self.tables, times=self.tables),) if self.table != 0 else ()),
            *(p for i, x in enumerate(self.layers) for p in numbered(i, x.parts(f"{role}.layer", call))),
            Part(f"{role}.norm", (NORMS[self.norm](rows, self.width, b),)),
            Part("lm_head", (LmHead(call.batch, positions, self.width, self.vocabulary, b, self.tied),)),
        )
