"""Record the operators of transformer layers on a memory tape, with their allocations and reads as in transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import sympy

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Container, ModulePart, StackCall
from costproof.analytic.costs import Size
from costproof.analytic.elementwise import Activation
from costproof.analytic.embedding import INT64
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.latent_attention import LatentBlock
from costproof.analytic.linear import Lent, Linear, LmHead
from costproof.analytic.memory_tape import MemoryTape, Piece
from costproof.analytic.norms import LayerNorm, NormKind
from costproof.analytic.patches import Conv2d, area
from costproof.analytic.pooling import AttentionPooling
from costproof.analytic.transformer import TransformerLayer


@dataclass(frozen=True, slots=True)
class CopyBranches:
    """Conditions under which operators return a view instead of a copy: a dimension is 1, or heads are shared."""

    one_sequence: bool
    one_token: bool
    """Whether the call has one new token per sequence."""
    one_head: bool
    shared: bool
    """Whether several query heads share a key/value head."""
    wide: bool
    """Whether the run's dtype is float32, so that a cast to float32 returns its argument."""
    one_key: bool = False
    one_shared: bool = False
    """Whether all query heads share one key/value head, so that repeating it makes a view until a product copies it."""
    wide_heads: bool = False
    """Whether heads have more than 256 elements, so that transformers repeats keys and values."""
    flash: bool = False
    """Whether the package flash-attn computes attention."""
    padded_heads: bool = False
    """Whether the package flash-attn pads heads to a multiple of 8 elements."""
    joined: bool = False
    """Whether the result of attention is joined with other rows' results, which drops its padding without a copy."""


@dataclass(slots=True)
class LayerTape:
    """Memory tape of one call of a stack of layers without a cache, such as an encoder."""

    call: StackCall
    branches: CopyBranches
    tape: MemoryTape = field(default_factory=MemoryTape)

    def _make(self, elements: Size, *reads: Piece) -> Piece:
        return self.tape.make(elements * self.call.item_bytes, *reads)

    def _widen(self, piece: Piece, elements: Size) -> Piece:
        """Record a cast to float32."""
        return piece if self.branches.wide else self.tape.make(4 * elements, piece)

    def _narrow(self, piece: Piece, elements: Size, *reads: Piece) -> Piece:
        """Record a cast from float32 to the run's dtype, or only the read if no cast is needed."""
        if not self.branches.wide:
            return self._make(elements, piece, *reads)
        self.tape.read(piece, *reads)
        return piece

    def _norm(self, kind: NormKind, x: Piece, rows: Size, width: Size) -> Piece:
        tape, elements = self.tape, rows * width
        if kind == "layer":
            out = self._make(elements, x)
            tape.read(x, self._make(rows, x), self._make(rows, x))
            return out
        wide = self._widen(x, elements)
        root = tape.make(4 * elements, wide)
        for _ in range(3):  # the mean, its sum with epsilon, the reciprocal root
            root = tape.make(4 * rows, root)
        scaled = tape.make(4 * elements, wide, root)
        if kind == "rms":
            return self._make(elements, self._narrow(scaled, elements))
        if kind == "wide_rms":
            return self._narrow(tape.make(4 * elements, scaled), elements)
        weight = () if self.branches.wide else (tape.make(4 * width),)
        return self._narrow(tape.make(4 * elements, scaled, tape.make(4 * width, *weight)), elements, x)

    def normed(self, kind: NormKind, x: Piece, width: Size) -> Piece:
        """Record a norm of all tokens."""
        return self._norm(kind, x, self.call.rows, width)

    def _keys(self, block: AttentionBlock) -> Size:
        """Return the number of keys per sequence in attention."""
        return self.call.past + self.call.tokens

    def layer(
        self,
        layer: TransformerLayer,
        x: Piece,
        attend: Callable[[Piece], Piece] | None = None,
        cross: Callable[[Piece], Piece] | None = None,
    ) -> Piece:
        """Record a layer; return the tape entry of its result.

        Args:
            attend: records attention with its projections (default: without a cache).
            cross: records cross attention with its projections, if the layer has any.
        """
        rows, width = self.call.rows, layer.width

        def branch(x: Piece, record: Callable[[Piece], Piece]) -> Piece:
            result = record(x if layer.norm_last else self._norm(layer.norm, x, rows, width))
            if layer.norm_after:
                result = self._norm(layer.norm, result, rows, width)
            if layer.layer_scale:
                result = self._make(rows * width, result)
            x = self._make(rows * width, x, result)
            return self._norm(layer.norm, x, rows, width) if layer.norm_last else x

        x = branch(x, attend or partial(self._own_attention, plain_attention(layer)))
        x = x if cross is None else branch(x, cross)
        return branch(x, partial(self._feed_forward, layer))

    def _feed_forward(self, layer: TransformerLayer, x: Piece) -> Piece:
        assert isinstance(layer.feed_forward, Mlp)
        return self._mlp(layer.feed_forward, x)

    def _own_attention(self, block: AttentionBlock | LatentBlock, x: Piece) -> Piece:
        """Record attention of all tokens to each other, without rotation, mask and cache."""
        assert isinstance(block, AttentionBlock)
        rows, width = self.call.rows, block.heads * block.head_dim
        q, k, v = (self._make(rows * width, x) for _ in range(3))
        core = self._core(block, q, k, v, None, copied=not self.branches.one_token)
        return self._make(rows * block.width, core)

    def _core(self, block: AttentionBlock, q: Piece, k: Piece, v: Piece, mask: Piece | None, *, copied: bool) -> Piece:
        """Record scores and weighted sums of queries [B, heads, T, d] over keys and values.

        Args:
            copied: whether what the heads of a token share lies token by token, so that a product of several sequences
                copies it: queries, and keys and values unless a cache joined them.
        """
        call, branches, keys = self.call, self.branches, self._keys(block)
        if branches.flash:
            return self._flash((block.heads, block.kv_heads), keys, (q, k, v), block.head_dim)
        result = call.rows * block.heads * block.head_dim
        one = branches.one_shared
        repeated = (branches.shared and not one) and (
            block.written_out or ((mask is not None or branches.wide_heads) and not branches.one_token)
        )
        if repeated:
            k, v = (self._make(call.batch * keys * block.heads * block.head_dim, piece) for piece in (k, v))
        if not block.written_out:
            return self._fused(result, call.rows * block.heads, (q, k, v), mask, call.rows * keys)
        copied = copied and not (branches.one_sequence or branches.one_head)
        context = call.batch * keys * block.heads * block.head_dim
        both = not branches.one_sequence if one else copied and not (block.cached or repeated)
        copies = [self._make(result, q)] if copied else []
        copies += [self._make(context, k)] if both else []
        scores = call.rows * block.heads * keys
        weights = self._make(scores, q, k, *copies)
        weights = self._make(scores, weights)
        for _ in range(3 if block.capped else 0):
            weights = self._make(scores, weights)
        assert mask is not None or not block.cached
        if mask is not None:
            weights = self._make(scores, weights, mask)
        if block.sinks:
            whole, each = scores + call.rows * block.heads, call.rows * block.heads
            joined = self._make(whole, weights)
            most = self._make(each, joined)
            self.tape.read(joined, self.tape.make(INT64 * each, joined))
            weights = self._make(whole, self._make(whole, joined, most))
        else:
            weights = self._softmax(weights, scores) if block.upcast else self._make(scores, weights)
        copies = [self._make(context, v)] if both else []
        return self._in_order(self._make(result, weights, v, *copies), result)

    def _softmax(self, weights: Piece, scores: Size) -> Piece:
        """Record a softmax in float32, including the cast of the scores to float32."""
        share = self.tape.make(4 * scores, self._widen(weights, scores), weights)
        return self._narrow(share, scores)

    def _in_order(self, result: Piece, elements: Size) -> Piece:
        """Record the copy that makes heads and tokens contiguous before the output projection."""
        if self.branches.one_token or self.branches.one_head:
            return result
        return self._make(elements, result)

    def _fused(
        self, elements: Size, rows: Size, reads: tuple[Piece, ...], mask: Piece | None = None, masked: Size = 0
    ) -> Piece:
        """Record torch's fused attention on a CPU, which converts a boolean mask to floating point."""
        if mask is not None:
            constants = (self._make(1), self._make(1))
            reads = (*reads, mask, self._make(masked, *constants, mask))
        result = self._make(elements, *reads)
        self.tape.read(*reads, self.tape.make(4 * rows, *reads))
        return result

    def _flash(
        self,
        heads: tuple[Size, Size],
        keys: Size,
        reads: tuple[Piece, Piece, Piece],
        width: Size,
        narrower: Size | None = None,
    ) -> Piece:
        """Record attention of the package flash-attn, whose results are token-major.

        Besides the result it returns the log-sum of each query and head, in float32, and two int64 of a generator.
        Before the call, transformers pads narrower values to the width of queries and keys.

        Args:
            heads: of queries, and of keys and values.
            reads: queries, keys and values.
            width: of queries, keys and values.
            narrower: width of values, if it is less.

        Branches: values may be narrower.

        Source: ``FlashAttnFunc.forward`` (flash_attn 2.8, flash_attn_interface), ``flash_attention_forward``
        (transformers).
        """
        queries, context = self.call.rows * heads[0], self.call.batch * keys * heads[1]
        (q, k, v), value = reads, width if narrower is None else narrower
        if narrower is not None:
            v = self._make(context * width, v)
        if self.branches.padded_heads:
            width = 8 * sympy.ceiling(width / sympy.Integer(8))
            q = self._make(queries * width, q)
            k, v = (self._make(context * width, piece) for piece in (k, v))
        result = self._make(queries * width, q, k, v)
        self.tape.read(q, k, v, result, self.tape.make(4 * queries), self.tape.make(2 * INT64))
        narrowed = self.branches.padded_heads or narrower is not None
        return self._make(queries * value, result) if narrowed and not self.branches.joined else result

    def _mlp(self, mlp: Mlp, x: Piece, rows: Size | None = None) -> Piece:
        rows = self.call.rows if rows is None else rows
        elements = rows * mlp.inner
        first = self._activate(mlp.function, self._make(elements, x), elements)
        if mlp.gated:
            first = self._make(elements, first, self._make(elements, x))
        return self._make(rows * mlp.width, first)

    def _activate(self, function: str, x: Piece, elements: Size) -> Piece:
        if function == "gelu_new":
            half, cube = self._make(elements, x), self._make(elements, x)
            inside = self._make(elements, x, self._make(elements, cube))
            for _ in range(3):  # a product, tanh, the sum with 1
                inside = self._make(elements, inside)
            return self._make(elements, half, inside)
        if function == "quick_gelu":
            share = self._make(elements, self._make(elements, x))
            return self._make(elements, x, share)
        return self._make(elements, x)

    def sequence(self, parts: Iterable[ModulePart], x: Piece) -> Piece:
        """Record modules that run one after the other; return the tape entry of the last result."""
        for layer in (layer for part in parts if part.called for layer in part.layers):
            if isinstance(layer, Linear):
                x = self.tape.make(layer.rows * layer.features_out * layer.item_bytes, x)
            elif isinstance(layer, LmHead):
                x = self.tape.make(layer.batch * layer.positions * layer.vocabulary * layer.item_bytes, x)
            elif isinstance(layer, Conv2d):
                sides = area(layer.side_out)
                x = self.tape.make(layer.batch * layer.channels_out * sides * layer.item_bytes, x)
            elif isinstance(layer, Activation):
                x = self._activate(layer.function, x, layer.elements)
            elif isinstance(layer, LayerNorm):
                x = self._norm("layer", x, layer.rows, layer.width)
            elif not isinstance(layer, Container | Lent):
                raise TypeError(f"the memory of {type(layer).__name__} is not recorded")
        return x

    def joined_attention(
        self, block: AttentionBlock, table: tuple[Piece, ...], before: Size, lengths: Sequence[Size], x: Piece
    ) -> Piece:
        """Record attention that runs one call per sequence on packed sequences, with float32 queries and keys.

        Args:
            table: cosines and sines of all tokens.
            before: tokens of sequences whose results are there first; none of them has a longer one.
            lengths: tokens of the other sequences, in order.

        Branches: heads of one token, or a single head, lie in order.

        Source: ``Qwen2_5_VLVisionAttention``, ``apply_rotary_pos_emb_vision`` (transformers).
        """
        rows, width, heads = self.call.rows, block.heads * block.head_dim, block.heads
        elements = rows * width
        whole = self._make(3 * elements, x)
        turned = []
        wide = [self._widen(whole, elements) for _ in range(2)]
        cosines, sines = table
        for piece in wide:
            straight = self.tape.make(4 * elements, piece, cosines)
            half = self.tape.make(4 * elements, self.tape.make(2 * elements, piece), piece)
            turned.append(self.tape.make(4 * elements, straight, self.tape.make(4 * elements, half, sines)))
        q, k = (self._narrow(piece, elements) for piece in turned)
        results = [self._make(before * width, q, k, whole)] if before != 0 else []
        for n in lengths:
            if not block.written_out:
                results.append(self._fused(n * width, n * heads, (q, k, whole)))
                continue
            weights = self._make(n**2 * heads, self._make(n**2 * heads, q, k))
            result = self._make(n * width, self._softmax(weights, n**2 * heads), whole)
            one = n == 1 or self.branches.one_token or self.branches.one_head
            results.append(result if one else self._make(n * width, result))
        return self._make(rows * block.width, self._make(elements, *results))

    def token_positions(self, ids: Piece) -> Piece:
        """Record position ids that count the non-padding tokens of each text.

        Source: ``RobertaEmbeddings.create_position_ids_from_input_ids`` (transformers): a mask as int32, its running
        sum, its cast, the sum with the cached length, the product with the mask, the cast to int64, the sum with the
        padding id.
        """
        tape, rows = self.tape, self.call.rows
        mask = tape.make(4 * rows, tape.make(rows, ids))
        found = tape.make(4 * rows, tape.make(INT64 * rows, mask), mask)
        found = tape.make(4 * rows, tape.make(4 * rows, found), mask)
        return tape.make(INT64 * rows, tape.make(INT64 * rows, found))

    def words(self, ids: Piece, width: Size, *, segments: bool, from_ids: bool) -> Piece:
        """Record the embeddings of token ids, of segments if there are any, and of positions, and their norm.

        Args:
            from_ids: whether positions are those of :meth:`token_positions`; otherwise all texts have the same.

        Source: ``BertEmbeddings``, ``RobertaEmbeddings``, ``Embeddings`` of DistilBERT (transformers).
        """
        rows, tokens = self.call.rows, self.call.rows if from_ids else self.call.tokens
        positions = (self.token_positions(ids),) if from_ids else ()
        types = self.tape.make(INT64 * tokens, *positions) if segments else None
        x = self._make(rows * width, ids)
        if types is not None:
            x = self._make(rows * width, x, self._make(rows * width, types))
        x = self._make(rows * width, x, self._make(tokens * width, *positions))
        return self._norm("layer", x, rows, width)

    def patches(
        self,
        images: Piece,
        width: Size,
        grid: Size,
        *,
        class_token: bool,
        own_table: bool,
        resampled: Size | None = None,
        in_float32: bool = False,
    ) -> Piece:
        """Record the patch convolution to grid x grid patches, the class token, and the addition of positions.

        Args:
            class_token: whether a class token is put before the patches.
            own_table: whether positions are a parameter that is added as it is; otherwise their rows are looked up.
            resampled: rows of the table, without the class token, that are resampled to the grid; ``None`` if they fit.
            in_float32: whether they are resampled in float32.

        Source: ``ViTEmbeddings``, ``Dinov2Embeddings``, ``CLIPVisionEmbeddings``, ``SiglipVisionEmbeddings``
        (transformers): ``forward`` and ``interpolate_pos_encoding``.
        """
        x = self._make(self.call.batch * grid**2 * width, images)
        return self.placed(
            x, width, grid, class_token=class_token, own_table=own_table, resampled=resampled, in_float32=in_float32
        )

    def placed(
        self,
        x: Piece,
        width: Size,
        grid: Size,
        *,
        class_token: bool,
        own_table: bool,
        resampled: Size | None = None,
        in_float32: bool = False,
    ) -> Piece:
        """Record the operators of :meth:`patches` after the convolution."""
        patches, own = grid**2 * width, self.call.tokens * width
        if class_token:
            x = self._make(self.call.rows * width, x)
        table: tuple[Piece, ...] = () if own_table else (self._make(own),) if resampled is None else ()
        if resampled is not None:
            if in_float32:
                wide = () if self.branches.wide else (self.tape.make(4 * resampled * width),)
                places = self._narrow(self.tape.make(4 * patches, *wide), patches)
            else:
                places = self._make(patches)
            table = (self._make(own, places) if class_token else places,)
        return self._make(self.call.rows * width, x, *table)

    def pooled(self, pooling: AttentionPooling, x: Piece) -> Piece:
        """Record the pooling of every sequence to one vector by attention of a learned probe.

        Projections of keys and values copy tokens to be the first dimension, and are several operators then.

        Source: ``SiglipMultiheadAttentionPoolingHead`` (transformers); ``torch.nn.MultiheadAttention``.
        """
        tape, vectors, tokens = self.tape, self.call.batch * pooling.width, self.call.rows * pooling.width
        scores = self.call.batch * pooling.heads * self.call.tokens
        moved = not (self.branches.one_sequence or self.branches.one_token)
        query = self._make(vectors, self._make(vectors))
        both = x
        if moved:
            both = self._make(2 * tokens, self._make(tokens, x))
        both = self._make(2 * tokens, both)
        if not (self.branches.one_sequence and self.branches.one_token):
            both = self._make(2 * tokens, both)
        query = self._make(vectors, query)
        shares = self._make(scores, self._make(scores, query, both))
        result = self._make(vectors, self._make(vectors, shares, both))
        tape.read(shares, self._make(self.call.rows, shares))
        normed = self._norm("layer", result, self.call.batch, pooling.width)
        return self._make(vectors, result, self._mlp(pooling.mlp, normed, self.call.batch))


def plain_attention(layer: TransformerLayer) -> AttentionBlock | LatentBlock:
    """Return a layer's attention block, which must be one for equal sequences, not for packed rows."""
    assert isinstance(layer.attention, AttentionBlock | LatentBlock)
    return layer.attention
