"""Combine blocks into transformer layers, dense or with experts, and into whole decoders."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costproof.analytic.attention_block import AttentionBlock, PackedBlock
from costproof.analytic.compose import CONTAINER, ModulePart, StackCall, by_identity, in_layer
from costproof.analytic.costs import Layer, Size
from costproof.analytic.elementwise import LayerScale, Residual
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import ExpertMixture, Mlp
from costproof.analytic.latent_attention import LatentBlock, PackedLatentBlock
from costproof.analytic.linear import LmHead
from costproof.analytic.norms import NORMS, NormKind
from costproof.analytic.rotary import RotaryTable


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """Transformer layer: x + attention(norm(x)), then optional cross-attention and an MLP or mixture likewise.

    A dense decoder layer has an :class:`Mlp`, gated or not, one of a mixture of experts a :class:`Mixture`;
    an encoder layer (ViT, CLIP) layer norms, biases, an MLP, no rotation and no cache. A norm after
    attention and MLP costs what one before them does; one after the additions (BERT, BART) changes what
    they read.

    Roles: ``.norm1``, ``.attention``, ``.cross_norm``, ``.cross``, ``.norm2``, ``.mlp`` below its own, and
    ``.norm1_after``, ``.norm2_after`` where attention and MLP are normalised once more before they are added.
    """

    width: Size
    attention: AttentionBlock | PackedBlock | LatentBlock | PackedLatentBlock
    feed_forward: Mlp | ExpertMixture
    norm: NormKind = "rms"
    norm_last: bool = False
    """Whether each norm follows the residual addition (post-norm)."""
    norm_after: bool = False
    """Whether further norms follow attention and MLP, before the residual addition."""
    cross: AttentionBlock | None = None
    layer_scale: bool = False
    """Whether learned scales per channel multiply the results of attention and MLP: ``.scale1``, ``.scale2``."""
    added_apart: bool = False
    """Whether each addition runs in a separate module: ``.attention_sum``, ``.cross_sum``, ``.mlp_sum``."""
    beside: tuple[Layer, ...] = ()
    """Further layers (formulas) in the module of the layer."""

    def parts(self, role: str, call: StackCall, attended: StackCall | None = None) -> tuple[ModulePart, ...]:
        """Return the modules of the layer with their formulas.

        Args:
            attended: the call as attention sees it, where windows divide the tokens differently.
        """
        b, rows = call.item_bytes, call.rows
        norm, scale = NORMS[self.norm](rows, self.width, b), LayerScale(rows, self.width, b)
        cross: tuple[ModulePart, ...] = ()
        if self.cross is not None:
            cross = (ModulePart(f"{role}.cross_norm", (norm,)), *self.cross.cross_parts(f"{role}.cross", call))
        residual = Residual(rows * self.width, 3 if cross else 2, b, chained=not self.norm_last)
        one = (Residual(rows * self.width, 1, b),)
        apart = ("attention", *(("cross",) if cross else ()), "mlp") if self.added_apart else ()
        return (
            ModulePart(role, (self.beside or (CONTAINER,)) if self.added_apart else (residual, *self.beside)),
            *(ModulePart(f"{role}.{which}_sum", one) for which in apart),
            ModulePart(f"{role}.norm1", (norm,)),
            *self.attention.parts(f"{role}.attention", attended or call),
            *((ModulePart(f"{role}.norm1_after", (norm,)),) if self.norm_after else ()),
            *((ModulePart(f"{role}.scale1", (scale,)),) if self.layer_scale else ()),
            *cross,
            ModulePart(f"{role}.norm2", (norm,)),
            *self.feed_forward.parts(f"{role}.mlp", rows, b),
            *((ModulePart(f"{role}.norm2_after", (norm,)),) if self.norm_after else ()),
            *((ModulePart(f"{role}.scale2", (scale,)),) if self.layer_scale else ()),
        )


@dataclass(frozen=True, slots=True)
class DecoderStack:
    """Decoder from token ids to logits: embedding, layers, last norm, output projection.

    Roles: ``.embedding``, ``.rotary``, ``.layer``, ``.norm`` below its own, and ``lm_head``.
    """

    width: Size
    vocabulary: Size
    layers: tuple[TransformerLayer, ...]
    table: Size = 0
    """Number of rotated elements of a head if one module computes cosines and sines for all layers; otherwise 0."""
    table_kind: type[RotaryTable] = RotaryTable
    own_positions: bool = False
    """Whether every sequence has its own position ids."""
    tables: int = 1
    """Number of rotary tables: one for every kind of layer with its own frequencies."""
    unread: int = 0
    """Number of rotary tables whose layers are all on other pipeline stages."""
    norm: NormKind = "rms"
    tied: bool = False
    """Whether the output projection is tied to the embedding."""
    scaled: bool = False
    """Whether embeddings are multiplied by a constant."""
    head: Size | None = None
    """Number of rows of the output projection (default: that of the embedding)."""

    def parts(self, role: str, call: StackCall, positions: Size) -> tuple[ModulePart, ...]:
        """Return the modules of the stack with their formulas.

        Args:
            positions: positions per sequence that get logits.
        """
        b, rows = call.item_bytes, call.rows
        table = self.table_kind(rows if self.own_positions else call.tokens, self.table, b)
        entries = self.vocabulary if self.head is None else self.head
        embedding = Embedding(rows, self.vocabulary, self.width, b, self.scaled, read_whole=self.tied)

        def layer_parts(layer: TransformerLayer) -> tuple[ModulePart, ...]:
            return tuple(layer.parts(f"{role}.layer", call))

        of_layer = by_identity(layer_parts)
        tables = (table,) * (self.tables - self.unread) + (replace(table, read=False),) * self.unread
        return (
            ModulePart(f"{role}.embedding", (embedding,)),
            *((ModulePart(f"{role}.rotary", tables, times=self.tables),) if self.table != 0 else ()),
            *(p for i, x in enumerate(self.layers) for p in in_layer(i, of_layer(x))),
            ModulePart(f"{role}.norm", (NORMS[self.norm](rows, self.width, b),)),
            ModulePart("lm_head", (LmHead(call.batch, positions, self.width, entries, b, self.tied),)),
        )
