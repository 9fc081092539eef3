"""Record the operators of a decoder on a memory tape, with their allocations and reads as in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import StackCall
from costproof.analytic.costs import Size
from costproof.analytic.embedding import INT64
from costproof.analytic.feed_forward import ExpertMixture
from costproof.analytic.latent_attention import LatentBlock
from costproof.analytic.layer_memory import LayerTape, plain_attention
from costproof.analytic.memory_tape import MemoryTape, Piece
from costproof.analytic.mixture_memory import MixtureTape
from costproof.analytic.rotary import RotaryAxes, RotaryComplex, RotaryHalves
from costproof.analytic.transformer import DecoderStack, TransformerLayer


@dataclass(frozen=True, slots=True)
class SequencePart:
    """Position of a rank among the ranks that divide each sequence, and the order of their parts."""

    order: str
    """Plan of context parallelism: ``ring``, ``zigzag`` or ``ulysses``."""
    ranks: int
    place: int


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps that allocate memory only on a rank of several, not on a single device: look-ups, gathers, biases, joins.

    All-reduces add up in place and allocate nothing.

    Source: ``shard`` of :mod:`costproof.models.decoding.rank_model` reads transformers' plans in the same way.
    """

    masked: bool = False
    """Whether the rank holds only some rows of the embedding, and overwrites look-ups of others with zeros."""
    gathered: tuple[Size, Size, Size] | None = None
    """(columns of all logits, padded columns, columns of a chunk); ``None`` if the rank computes all columns."""
    padded: bool = False
    """Whether the rank has fewer columns of the logits than a chunk."""
    one_row: bool = False
    """Whether a single row of logits is gathered, so that its chunks are already in order."""
    biased: frozenset[str] = frozenset()
    """Modules, ``attention`` or ``mlp``, that add a bias after a sum over ranks."""
    rejoined: bool = False
    """Whether latents are split into two parts and joined again."""
    layers: range | None = None
    """Indices of the layers in the rank's pipeline stage (default: all)."""
    first: bool = True
    last: bool = True
    """Whether the pipeline stage has the last norm and the output projection; others return hidden states."""
    sharing: Size | None = None
    """Number of ranks of Ulysses, which cache some heads at all positions; calls then take position ids."""
    parts: SequencePart | None = None
    """Position among ranks that divide each sequence and cache their own positions; calls then take position ids."""
    kept: Size | None = None
    """Cached tokens of the rank in a step whose new token another rank caches; ``None`` if it caches new tokens."""


ALONE: Final = RankSteps()


@dataclass(slots=True)
class DecoderTape(MixtureTape):
    """Memory tape of one call of a decoder.

    A layer that two later layers of its kind follow holds less than these at every moment: they differ by the cache of
    the layers between them. Of such a layer only its cache is recorded.
    """

    masks: dict[bool, Piece] = field(default_factory=dict)
    """Tape entry of the mask that the call is given, for layers with (true) and without a window (false)."""
    rank: RankSteps = ALONE
    apart: bool = False
    """Whether the cache keeps the prompt separate from later tokens, so that each call concatenates both anew."""
    places: Piece | None = None
    """Tape entry of the position ids if they are an argument of the call, else ``None``."""

    def record(
        self,
        stack: DecoderStack,
        windows: Sequence[int],
        positions: Size,
        masks: dict[bool, tuple[Size, Size]],
        *,
        capped: bool,
        embedded: bool,
    ) -> MemoryTape:
        """Record a call from token ids, or from embeddings, to logits.

        Args:
            stack: the decoder.
            windows: of each layer; 0 for none.
            positions: positions per sequence that get logits.
            masks: whether a layer has a window -> keys of the mask that the call is given, and bytes of an element.
            capped: whether logits pass a soft cap.
            embedded: whether the call is given embeddings.

        Branches: layers differ by having a window, and a decoder may have a table for each of both kinds.
        """
        tape, call = self.tape, self.call
        own = range(len(stack.layers)) if self.rank.layers is None else self.rank.layers
        embedded = embedded or not self.rank.first
        given = tape.give(call.rows * (stack.width * call.item_bytes if embedded else INT64))
        old = {i: self._given_cache(stack.layers[i]) if call.past != 0 else () for i in own}
        for windowed, (keys, item) in masks.items():
            self.masks[windowed] = tape.give(item * self._attended.rows * keys)
        shared = self.rank.sharing is not None or self.rank.parts is not None
        self.places = tape.give(INT64 * call.tokens) if shared else None
        hidden = given if embedded else self._embedding(stack, given)
        # A cache with a window, or with the prompt apart, holds a number until it is first extended.
        numbered = call.past == 0
        widths = {i: tape.make(INT64) for i in own if numbered and (windows[i] or self.apart)}
        tables = self._tables(stack, hidden)
        last = {own[at] for at in last_two([(stack.layers[i], windows[i]) for i in own])}
        for i in own:
            layer = stack.layers[i]
            table = tables[0 if windows[i] or len(tables) == 1 else 1]
            number = (widths[i],) if i in widths else ()
            if i in last:
                attend = partial(
                    self._attend, plain_attention(layer), table, (*old[i], *number), self.masks.get(windows[i] > 0)
                )
                hidden = self.layer(layer, hidden, attend)
            elif self.rank.kept is None:
                for k, size in enumerate(self._cache_sizes(layer, past=0 if self._joins else call.past)):
                    tape.keep(tape.make(size, *old[i][k : k + 1]))
                tape.read(*number)
        if not self.rank.last:
            tape.keep(hidden)
            return tape
        out = self._norm(stack.norm, hidden, call.rows, stack.width)
        rows = call.batch * positions
        logits = self._make(rows * (stack.vocabulary if stack.head is None else stack.head), out)
        columns = stack.vocabulary
        if self.rank.gathered is not None:
            columns, gathered, chunk = self.rank.gathered
            logits = self._make(rows * chunk, logits) if self.rank.padded else logits
            logits = self._make(rows * gathered, logits)
            logits = logits if self.rank.one_row else self._make(rows * gathered, logits)
        for _ in range(3 if capped else 0):
            logits = self._make(rows * columns, logits)
        tape.keep(logits)
        return tape

    def _embedding(self, stack: DecoderStack, ids: Piece) -> Piece:
        tokens, elements = self.call.tokens, self.call.rows * stack.width
        hidden = self._look_up(elements, ids)
        if stack.table == 0:  # learned positions are added
            hidden = self._make(elements, hidden, self._make(tokens * stack.width, self._token_positions()))
        return self._make(elements, hidden) if stack.scaled else hidden

    def _look_up(self, elements: Size, ids: Piece) -> Piece:
        """Record the embedding; look-ups of rows that other ranks hold are overwritten with zeros."""
        if not self.rank.masked:
            return self._make(elements, ids)
        return masked_look_up(self.tape, elements, self.call.rows, self.call.item_bytes, ids)

    def _project_out(self, block: AttentionBlock | LatentBlock, core: Piece) -> Piece:
        """Record attention's output projection, and the addition of its bias after a sum over ranks."""
        return self._summed(self._make(self.call.rows * block.width, core), self.call.rows * block.width, "attention")

    def _summed(self, x: Piece, elements: Size, part: str) -> Piece:
        return self._make(elements, x) if part in self.rank.biased else x

    def _token_positions(self) -> Piece:
        """Record the position ids, which follow those of cached tokens unless they are given."""
        if self.places is not None:
            return self.places
        return self.tape.make(INT64 * self.call.tokens, self.tape.make(INT64 * self.call.tokens))

    def _tables(self, stack: DecoderStack, hidden: Piece) -> list[tuple[Piece, ...]]:
        """Record the position tables (cosines and sines, or complex numbers), if the decoder has rotary embeddings."""
        if stack.table == 0:
            return [()]
        tape, tokens, positions = self.tape, self.call.tokens, self._token_positions()
        found: list[tuple[Piece, ...]] = []
        if issubclass(stack.table_kind, RotaryAxes):
            return [self._axes(stack.table, positions)]
        for _ in range(stack.tables):
            angles = tape.make(2 * tokens * stack.table, tape.make(4 * tokens, positions))
            if issubclass(stack.table_kind, RotaryComplex):
                polar = tape.make(4 * tokens * stack.table, tape.make(2 * tokens * stack.table, angles), angles)
                found.append((tape.make(4 * tokens * stack.table, polar),))
                continue
            width: Size = stack.table
            if issubclass(stack.table_kind, RotaryHalves):
                width = width / 2
            else:
                angles = tape.make(4 * tokens * width, angles)
            found.append(self._cosines(tokens * width, angles))
        return found

    def _axes(self, width: Size, positions: Piece) -> tuple[Piece, ...]:
        """Record cosines and sines of three position axes per token, each of which contributes some frequencies."""
        tape, rows = self.tape, self.call.rows
        angles = tape.make(6 * rows * width, tape.make(12 * rows, positions))
        cosines, sines = (tape.make(6 * rows * width, tape.make(6 * rows * width, angles)) for _ in range(2))
        sines = tape.make(4 * rows * width, tape.make(2 * rows * width, sines))
        cosines = tape.make(4 * rows * width, tape.make(2 * rows * width, cosines))
        return tuple(self._narrow(piece, rows * width) for piece in (cosines, sines))

    def _cosines(self, elements: Size, angles: Piece) -> tuple[Piece, ...]:
        """Record the cosines and sines of angles, with their scaling and cast to the run's dtype."""
        scaled = [self.tape.make(4 * elements, self.tape.make(4 * elements, angles)) for _ in range(2)]
        return tuple(self._narrow(one, elements) for one in scaled)

    def encode(self, layer: TransformerLayer, x: Piece, positions: Piece, mask: Piece, *, layers: int) -> Piece:
        """Record layers with rotated queries and keys and without a cache, followed by a norm.

        All but the last hold the same, so that one of them is recorded.

        Args:
            positions: the positions of the tokens.
            mask: what attention adds to scores, or what it turns into that.

        Branches: a single layer is the last one.
        """
        tokens, block = self.call.tokens, layer.attention
        assert isinstance(block, AttentionBlock)
        angles = self.tape.make(2 * tokens * block.rotary, self.tape.make(4 * tokens, positions))
        table = self._cosines(tokens * block.rotary, self.tape.make(4 * tokens * block.rotary, angles))
        for _ in range(min(layers, 2)):
            x = self.layer(layer, x, partial(self._attend, block, table, (), mask))
        return self._norm(layer.norm, x, self.call.rows, layer.width)

    def _given_cache(self, layer: TransformerLayer) -> tuple[Piece, ...]:
        given = tuple(map(self.tape.give, self._cache_sizes(layer, new=0)))
        self.tape.keep(*given if self._joins or self.rank.kept is not None else ())
        return given

    @property
    def _joins(self) -> bool:
        return self.apart and self.call.past != 0

    def _cache_sizes(
        self, layer: TransformerLayer, new: Size | None = None, past: Size | None = None
    ) -> tuple[Size, Size]:
        """Return the bytes of a layer's cached keys, and of its cached values, after the call or before it.

        Args:
            new: tokens that the call adds (default: its own).
            past: tokens before the call (default: its own).
        """
        call, block = self._attended, self._of_own_heads(plain_attention(layer))
        added = 0 if new is None or self.rank.kept is not None else call.tokens
        keys = call.tokens if past == 0 else self._keys(block) - added
        if isinstance(block, LatentBlock):
            return call.batch * keys * block.rank * call.item_bytes, call.batch * keys * block.rope * call.item_bytes
        size = call.batch * keys * block.kv_heads * block.head_dim * call.item_bytes
        return size, size

    def _keys(self, block: AttentionBlock | LatentBlock) -> Size:
        """Return the number of keys per sequence after the call; a full window of w keys caches w - 1."""
        if self.rank.kept is not None:
            return self.rank.kept
        if isinstance(block, AttentionBlock) and block.window != 0 and self.call.past != 0 and not block.filling:
            return block.window - 1 + self.call.tokens
        return self.call.past + self._attended.tokens

    @property
    def _attended(self) -> StackCall:
        """Return the sizes of the call for attention: with the tokens of all ranks if they share the prompt.

        Branches: a new token of a step is one.
        """
        ranks = self.rank.sharing
        return (
            self.call if ranks is None or self.call.past != 0 else replace(self.call, tokens=self.call.tokens * ranks)
        )

    def _of_own_heads(self, block: AttentionBlock | LatentBlock) -> AttentionBlock | LatentBlock:
        """Return the attention block with the heads of this rank: a share of them under Ulysses."""
        ranks = self.rank.sharing
        if ranks is None or isinstance(block, LatentBlock):
            return block
        return replace(block, heads=block.heads / ranks, kv_heads=block.kv_heads / ranks)

    def _attend(
        self,
        block: AttentionBlock | LatentBlock,
        table: tuple[Piece, ...],
        old: tuple[Piece, ...],
        mask: Piece | None,
        x: Piece,
    ) -> Piece:
        if isinstance(block, LatentBlock):
            return self._latent(block, x, table, old, mask)
        return self._attention(block, x, table, old, mask)

    def _feed_forward(self, layer: TransformerLayer, x: Piece) -> Piece:
        if isinstance(layer.feed_forward, ExpertMixture):
            return self._mixture(layer.feed_forward, x)
        return self._summed(LayerTape._feed_forward(self, layer, x), self.call.rows * layer.width, "mlp")

    def _attention(
        self, block: AttentionBlock, x: Piece, table: tuple[Piece, ...], old: tuple[Piece, ...], mask: Piece | None
    ) -> Piece:
        rows = self.call.rows
        if block.fused:
            return self._fused_attention(block, x, old, mask)
        (queries, keys, values), width = self._projected(block, x, table), block.kv_heads * block.head_dim
        if self.rank.sharing is not None:
            return self._project_out(block, self._with_own_heads(block, (queries, keys, values), old, mask))
        size = self.call.batch * self._keys(block) * width
        if self.rank.parts is not None:
            own = self._extended((size, size), old, (keys, values))
            heads = (block.heads, block.kv_heads)
            core = self._in_parts(heads, (block.head_dim,) * 2, (queries, *own), ordered=block.pairs)
            return self._project_out(block, core)
        if self.apart and self.call.past == 0:
            self.tape.read(*old)
            old = ()
        if self._joins:
            keys, values = self._make(rows * width, keys), self._make(rows * width, values)
            self.tape.keep(keys, values)
        cache = [keys, values]
        if block.cached:
            cache = [self._make(size, *old[:1], keys), self._make(size, *old[1:], values)]
            self.tape.keep(*() if self._joins else cache)
        # Queries that were joined lie in order.
        core = self._core(block, queries, cache[0], cache[1], mask, copied=not (block.pairs or self.branches.one_token))
        return self._project_out(block, core)

    def _with_own_heads(
        self, block: AttentionBlock, parts: tuple[Piece, Piece, Piece], old: tuple[Piece, ...], mask: Piece | None
    ) -> Piece:
        """Record attention between all-to-alls of heads and positions, or before an all-gather in a decode step.

        An all-to-all orders chunks, receives others and joins these. An all-gather needs no order before.

        Branches: a call with a past is a step.
        """
        call, own = self._attended, self._of_own_heads(block)
        assert isinstance(own, AttentionBlock)
        shared, in_step = call.batch * call.tokens * own.head_dim, self.call.past != 0
        queries, keys, values = parts
        size = call.batch * self._keys(block) * own.kv_heads * own.head_dim
        if not in_step:
            keys, values = (self._exchanged(shared * own.kv_heads, piece) for piece in (keys, values))
        cache = [self._make(size, *old[:1], keys), self._make(size, *old[1:], values)]
        self.tape.keep(*cache)
        if not in_step:
            queries = self._exchanged(shared * own.heads, queries)
        attended = DecoderTape(call, self.branches, self.tape)
        # Own heads of a new token lie between those of others.
        core = attended._core(own, queries, cache[0], cache[1], mask, copied=in_step)
        whole = shared * (block.heads if in_step else own.heads)
        return self._make(whole, self._make(whole, core)) if in_step else self._exchanged(whole, core)

    def _exchanged(self, elements: Size, piece: Piece) -> Piece:
        return self._make(elements, self._make(elements, self._make(elements, piece)))

    def _projected(self, block: AttentionBlock, x: Piece, table: tuple[Piece, ...]) -> tuple[Piece, Piece, Piece]:
        """Record the projections; return queries and keys, normalized and rotated as in the block, and values."""
        rows = self.call.rows
        widths = (block.heads * block.head_dim, block.kv_heads * block.head_dim)
        # Gemma 3 projects all three first; others normalize queries and keys as they are projected.
        late = block.qk_norm_kind == "centred_rms"
        made: list[Piece] = []
        for heads, width in zip((block.heads, block.kv_heads), widths, strict=True):
            made.append(self._make(rows * width, x))
            if block.qk_norm == "head" and not late:
                made[-1] = self._norm(block.qk_norm_kind, made[-1], rows * heads, block.head_dim)
        values = self._make(rows * widths[1], x)
        if block.qk_norm == "head" and late:
            for i, heads in enumerate((block.heads, block.kv_heads)):
                made[i] = self._norm(block.qk_norm_kind, made[i], rows * heads, block.head_dim)
        queries, keys = (self._rotate(p, rows * w, table, block.pairs) for p, w in zip(made, widths, strict=True))
        return queries, keys, values

    def _fused_attention(self, block: AttentionBlock, x: Piece, old: tuple[Piece, ...], mask: Piece | None) -> Piece:
        """Record attention without rotation, with a fused query/key/value projection."""
        size = self.call.batch * self._keys(block) * block.width
        whole = self._make(3 * self.call.rows * block.width, x)
        cache = [self._make(size, *old[i : i + 1], whole) for i in range(2)]
        self.tape.keep(*cache)
        core = self._core(block, whole, cache[0], cache[1], mask, copied=True)
        return self._make(self.call.rows * block.width, core)

    def _rotate(self, x: Piece, elements: Size, table: tuple[Piece, ...], pairs: bool) -> Piece:
        if pairs:
            return self._rotate_pairs(x, elements, table, x)
        cosines, sines = table
        straight = self._make(elements, x, cosines)
        turned = self._make(elements, self._make(elements / 2, x), x)
        return self._make(elements, straight, self._make(elements, turned, sines))

    def _rotate_pairs(self, x: Piece, elements: Size, table: tuple[Piece, ...], *reads: Piece) -> Piece:
        """Record the rotation of pairs: two differences and sums of products, which are joined."""
        halves = []
        for _ in range(2):
            products = [self._make(elements / 2, x, number) for number in table]
            halves.append(self._make(elements / 2, *products))
        return self._make(elements, *halves)

    def _latent(
        self, block: LatentBlock, x: Piece, table: tuple[Piece, ...], old: tuple[Piece, ...], mask: Piece | None
    ) -> Piece:
        call, keys = self.call, self._keys(block)
        q, turned, *new = self._latent_projected(block, x, table)
        sizes = (call.batch * keys * block.rank, call.batch * keys * block.rope)
        cache = self._extended(sizes, old, (new[0], new[1]))
        if block.absorbed:
            core = self._absorbed(block, q, turned, cache, mask, copied=not self.branches.one_sequence)
        else:
            q = self._make(call.rows * block.heads * (block.nope + block.rope), q, turned)
            joined, expanded = self._expanded(block, call.batch * keys, cache)
            if self.rank.parts is None:
                core = self._latent_core(block, q, joined, expanded, mask)
            else:
                widths, heads = (block.nope + block.rope, block.value_dim), (block.heads, block.heads)
                core = self._in_parts(heads, widths, (q, joined, expanded), ordered=True, inside=True)
        return self._project_out(block, core)

    def _extended(
        self, sizes: tuple[Size, Size], old: tuple[Piece, ...], new: tuple[Piece, Piece]
    ) -> tuple[Piece, Piece]:
        """Record the extension of a layer's cache, unless another rank caches new tokens; return the cache's pieces."""
        if self.rank.kept is not None:
            return old[0], old[1]
        first, second = (
            self._make(size, *old[i : i + 1], one) for i, (size, one) in enumerate(zip(sizes, new, strict=True))
        )
        self.tape.keep(first, second)
        return first, second

    def _in_parts(
        self,
        heads: tuple[Size, Size],
        widths: tuple[Size, Size],
        reads: tuple[Piece, Piece, Piece],
        *,
        ordered: bool,
        inside: bool = False,
    ) -> Piece:
        """Record attention to a sequence whose parts are on several ranks.

        In a step each rank attends to its own part, and weighted results of all are added in place. In a ring the parts
        pass by, and each is merged into the result; otherwise positions of all heads are exchanged for those of some.

        Args:
            heads: of queries, and of keys and values.
            widths: of keys and of values.
            reads: queries, keys and values.
            ordered: whether queries lie head by head, so that the result does too.
            inside: whether values are a part of a wider piece, and copied before they are sent.

        Branches: a call with a past is a step; of a zigzag order, parts of later ranks are seen by the second half.

        Source: :mod:`costproof.models.decoding.sequence_model`.
        """
        part, call, tape, (q, k, v), value = self.rank.parts, self.call, self.tape, reads, widths[1]
        assert part is not None
        rows, context = call.rows * heads[0], call.rows * heads[1]
        whole = rows * value
        if call.past != 0:
            result, logs = self._with_logs(rows, value, q, k, v)
            total = tape.make(4 * rows, tape.make(4 * part.ranks * rows, logs))
            share = tape.make(4 * rows, tape.make(4 * rows, logs, total))
            return self._narrow(tape.make(4 * whole, result, share), whole)
        if part.order == "ulysses":
            q, k, v = (
                self._exchanged(n, piece)
                for n, piece in ((rows * widths[0], q), (context * widths[0], k), (context * value, v))
            )
            result, _ = self._with_logs(rows, value, q, k, v)
            return self._in_order(self._exchanged(whole, result), whole)
        v = self._make(context * value, v) if inside else v
        result, logs = self._with_logs(rows, value, q, k, v)
        result = self._widen(result, whole)
        passed = [k, v]
        for step in range(1, part.ranks):
            sent = self._make(context * (widths[0] + value), *passed)
            passed = [self._make(context * (widths[0] + value), self._make(context * (widths[0] + value), sent))]
            tape.read(sent, *passed)
            later = step > part.place
            if later and part.order == "ring":
                continue
            seen = rows / 2 if later else rows
            merged = self._merged(seen, value, result, logs, *self._with_logs(seen, value, q, *passed))
            if later:
                merged = tape.make(4 * whole, result, merged[0]), tape.make(4 * rows, logs, merged[1])
                ordered = True
            result, logs = merged
        result = self._narrow(result, whole)
        return self._in_order(result, whole) if ordered else result

    def _with_logs(self, rows: Size, value: Size, *reads: Piece) -> tuple[Piece, Piece]:
        """Record an attention kernel that also returns log-sum-exp values, and the seed and offset of its generator."""
        made = self._make(rows * value, *reads), self.tape.make(4 * rows, *reads)
        self.tape.read(*reads, *made, self.tape.make(INT64, *reads), self.tape.make(INT64, *reads))
        return made

    def _merged(
        self, rows: Size, value: Size, result: Piece, logs: Piece, part: Piece, more: Piece
    ) -> tuple[Piece, Piece]:
        """Record the merge of results, and of log-sum-exp values, over two parts of the keys."""
        tape, whole = self.tape, rows * value
        weight = tape.make(4 * rows, tape.make(4 * rows, more, logs))
        wide = self._widen(part, whole)
        joined = tape.make(4 * whole, result, tape.make(4 * whole, weight, tape.make(4 * whole, result, wide)))
        apart = tape.make(4 * rows, logs, more)
        share = tape.make(4 * rows, apart)
        tape.read(apart, tape.make(4 * rows, apart))
        return joined, tape.make(4 * rows, logs, share)

    def _latent_projected(self, block: LatentBlock, x: Piece, table: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """Record latent attention's projections; return queries, their rotated part, new latents and rotated keys."""
        rows = self.call.rows
        low = x if block.q_rank == 0 else self._norm("rms", self._make(rows * block.q_rank, x), rows, block.q_rank)
        q = self._make(rows * block.heads * (block.nope + block.rope), low)
        down = self._make(rows * (block.rank + block.rope), x)
        if self.rank.rejoined:
            down = self._make(rows * (block.rank + block.rope), down)
        latents = self._norm("rms", down, rows, block.rank)
        turned, key = self._rotate_latent(block, q, down, table)
        return q, turned, latents, key

    def _expanded(self, block: LatentBlock, keys: Size, context: Sequence[Piece]) -> tuple[Piece, Piece]:
        """Record the expansion of latents and rotated keys; return the keys, and the tensor that holds the values."""
        expanded = self._make(keys * block.heads * (block.nope + block.value_dim), context[0])
        return self._make(keys * block.heads * (block.nope + block.rope), expanded, context[1]), expanded

    def _latent_core(
        self,
        block: LatentBlock,
        q: Piece,
        joined: Piece,
        expanded: Piece,
        mask: Piece | None,
        *,
        packed: tuple[bool, bool] = (False, False),
    ) -> Piece:
        """Record scores and weighted sums over keys and values that latents were expanded to.

        Args:
            packed: whether queries, and keys, are views of those of several rows, head by head.
        """
        call, rows, keys, width = self.call, self.call.rows, self._keys(block), block.nope + block.rope
        values, result = call.batch * keys * block.heads * block.value_dim, rows * block.heads * block.value_dim
        if self.branches.flash:
            narrower = None if block.equal_widths else block.value_dim
            return self._flash((block.heads, block.heads), keys, (q, joined, expanded), width, narrower)
        several = not (self.branches.one_sequence or self.branches.one_head)
        # Values are a part of what is expanded, and not in order.
        copied = several and (packed[1] or not self.branches.one_key)
        packed = (several and packed[0], several and packed[1])
        if block.written_out:
            scores = rows * block.heads * keys
            sizes = (rows * block.heads * width, call.batch * keys * block.heads * width)
            copies = [self._make(n, x) for n, x, yes in zip(sizes, (q, joined), packed, strict=True) if yes]
            weights = self._make(scores, self._make(scores, q, joined, *copies))
            assert mask is not None
            weights = self._softmax(self._make(scores, weights, mask), scores)
            copy = (self._make(values, weights, expanded),) if copied else ()
            core = self._make(result, weights, expanded, *copy)
        elif block.equal_widths:
            core = self._fused(result, rows * block.heads, (q, joined, expanded), mask, rows * keys)
        else:
            core = self._unfused(
                block.heads, keys, (q, joined, expanded), (width, block.value_dim), block.heads, mask, copied=copied,
                packed=packed,
            )  # fmt: skip
        return self._in_order(core, result)

    def _rotate_latent(
        self, block: LatentBlock, q: Piece, down: Piece, table: tuple[Piece, ...]
    ) -> tuple[Piece, Piece]:
        """Record the rotary embedding of latent attention, on a part of the queries and on the shared key."""
        parts = ((q, self.call.rows * block.heads * block.rope), (down, self.call.rows * block.rope))
        if not block.as_complex:
            one, other = (self._rotate_pairs(piece, elements, table) for piece, elements in parts)
            return one, other
        wide = [self._widen(piece, elements) for piece, elements in parts]
        found = []
        for (piece, elements), cast in zip(parts, wide, strict=True):
            found.append(self._narrow(self.tape.make(4 * elements, cast, *table), elements, piece))
        return found[0], found[1]

    def _unfused(
        self,
        heads: Size,
        keys: Size,
        reads: tuple[Piece, Piece, Piece],
        widths: tuple[Size, Size],
        kv_heads: Size,
        given: Piece | None,
        *,
        copied: bool,
        packed: tuple[bool, bool] = (False, False),
    ) -> Piece:
        """Record torch's unfused attention in float32 operators, used if queries and values differ in width.

        Args:
            given: the boolean mask of the call, which is turned into numbers; without one, several tokens make a mask.
            copied: whether the product copies values.
            packed: whether it copies queries, and keys.
        """
        tape, call, branches = self.tape, self.call, self.branches
        q, k, v = reads
        width, value = widths
        queries, context = call.rows * heads, call.batch * keys * kv_heads
        mask: tuple[Piece, ...] = ()
        if given is not None:
            mask = (self._make(call.rows * keys, self._make(1), self._make(1), given),)
        held = [
            self._widen(piece, n) for piece, n in ((q, queries * width), (k, context * width), (v, context * value))
        ]
        scaled = tape.make(4 * queries * width, held[0])
        if not mask and not branches.one_token:
            tokens = call.tokens * keys
            below = tape.make(tokens, tape.make(tokens))
            constants = (tape.make(4), tape.make(4))
            mask = (tape.make(4 * tokens, below, *constants),)
        scores = queries * keys
        turned = tape.make(4 * context * width, held[1])
        sides = ((queries, scaled), (context, turned))
        copies = [tape.make(4 * n * width, x) for (n, x), yes in zip(sides, packed, strict=True) if yes]
        weights = tape.make(4 * scores, scaled, turned, *copies)
        if mask:
            weights = tape.make(4 * scores, weights, *mask)
        shares = tape.make(4 * scores, weights)
        narrow = self._narrow(shares, scores)
        copy = (tape.make(4 * context * value, held[2]),) if copied else ()
        result = self._narrow(tape.make(4 * queries * value, shares, *copy), queries * value)
        # The arguments of the operator live until all of its parts have run.
        tape.read(q, k, v, *held, scaled, *mask, *(() if given is None else (given,)), shares, narrow)
        return result

    def _absorbed(
        self, block: LatentBlock, q: Piece, turned: Piece, cache: Sequence[Piece], mask: Piece | None, *, copied: bool
    ) -> Piece:
        """Record a decode step of absorbed latent attention, with latents as the keys and values of all heads.

        Args:
            copied: whether the result is copied, since it lies head by head.
        """
        call, rows, keys = self.call, self.call.rows, self._keys(block)
        width, heads = block.rank + block.rope, rows * block.heads
        q = self._make(heads * width, self._make(heads * block.rank, q), turned)
        joined = self._make(call.batch * keys * width, *cache)
        if self.rank.parts is not None:
            core = self._in_parts((block.heads, 1), (width, block.rank), (q, joined, cache[0]), ordered=True)
        elif block.written_out:
            core = self._shared_scores(block, q, joined, cache[0], mask)
        else:
            core = self._unfused(block.heads, keys, (q, joined, cache[0]), (width, block.rank), 1, None, copied=False)
        core = self._make(heads * block.value_dim, core)
        return self._make(heads * block.value_dim, core) if copied else core

    def _shared_scores(self, block: LatentBlock, q: Piece, k: Piece, v: Piece, mask: Piece | None) -> Piece:
        """Record eager attention with keys and values that all heads share; a batched product copies them per head."""
        context = self.call.batch * block.heads * self._keys(block)
        scores = self.call.rows * block.heads * self._keys(block)
        copied = not (self.branches.one_sequence or self.branches.one_head)
        copy = (self._make(context * (block.rank + block.rope), q, k),) if copied else ()
        weights = self._make(scores, self._make(scores, q, k, *copy))
        assert mask is not None
        weights = self._softmax(self._make(scores, weights, mask), scores)
        copy = (self._make(context * block.rank, weights, v),) if copied else ()
        return self._make(self.call.rows * block.heads * block.rank, weights, v, *copy)


def last_two(kinds: Sequence[object]) -> set[int]:
    """Return the indices of the last two layers of each kind."""
    found: dict[object, list[int]] = {}
    for i, kind in enumerate(kinds):
        found.setdefault(kind, []).append(i)
    return {i for places in found.values() for i in places[-2:]}


def masked_look_up(tape: MemoryTape, elements: Size, rows: Size, item: Size, ids: Piece) -> Piece:
    """Record look-ups of ``rows`` tokens in a table of which the rank has some rows; return the masked result.

    Two comparisons and their union find the ids of other ranks, for which row 0 is read and overwritten with a zero.
    """
    outside = tape.make(rows, tape.make(rows, ids), tape.make(rows, ids))
    found = tape.make(elements * item, tape.make(INT64 * rows, tape.make(INT64 * rows, ids), outside))
    tape.read(found, outside, tape.make(item))
    return found
