"""Record the operators of a decoder's prefill, decode step or packed batch of rows on a memory tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, Protocol, cast

import sympy

from costproof.algebra.series import CACHED, CONTEXT
from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock, PackedBlock
from costproof.analytic.compose import StackCall, prompt_call
from costproof.analytic.costs import Size
from costproof.analytic.decoder_memory import ALONE, DecoderTape, RankSteps, last_two
from costproof.analytic.embedding import INT64
from costproof.analytic.latent_attention import LatentBlock, PackedLatentBlock
from costproof.analytic.layer_memory import CopyBranches
from costproof.analytic.memory_tape import MemoryTape, Piece
from costproof.analytic.transformer import DecoderStack
from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import ROWS_INVOCATION, Workload
from costproof.models.decoding.formulas import (
    DecoderSizes,
    fills,
    hides,
    is_packed,
    masked_chunk,
    positions_kept,
    windows_of,
)
from costproof.models.decoding.names import WithRows, row_kinds
from costproof.models.decoding.sharding import Shards
from costproof.patches.flash_attention import FLASH, WHOLE_HEADS

_WIDEST_SHARED: Final = 256
"""Widest head for which transformers passes shared keys and values to sdpa without repeating them."""


@dataclass(frozen=True, slots=True)
class TapeRow:
    """Equal sequences of a batch, whose attention is a separate call."""

    call: StackCall
    branches: CopyBranches
    kind: int
    """Index of the row's kind, which selects its block in a :class:`PackedBlock`."""
    masks: Mapping[bool, tuple[Size, Size]]
    """Mask of the row, (number of keys, bytes per element), for layers with (true) and without a window (false)."""


@dataclass(slots=True)
class RowsTape(DecoderTape):
    """Memory tape of a batch of rows: linear layers, norms and experts run on the tokens of all rows together."""

    rows: tuple[TapeRow, ...] = ()
    embedded: bool = False
    """Whether the call takes embeddings instead of token ids."""
    axes: int = 1
    """Number of position ids per token."""
    given_positions: Piece = 0
    masks_of: dict[tuple[int, bool], Piece] = field(default_factory=dict)
    """Tape entry of a row's mask, by (index of the row, whether the layer has a window)."""

    def record_rows(
        self, stack: DecoderStack, windows: Sequence[int], logits: int, *, capped: bool, picked: bool
    ) -> MemoryTape:
        """Record the packed call from token ids to logits.

        Args:
            stack: the decoder.
            windows: of each layer; 0 for none.
            logits: positions that get logits.
            capped: whether logits pass a soft cap.
            picked: whether these are not all positions, but those whose indices are given.

        Branches: a row may have no past, and layers differ by having a window.
        """
        tape, call = self.tape, self.call
        item = stack.width * call.item_bytes if self.embedded else INT64
        given, self.given_positions = tape.give(item * call.rows), tape.give(self.axes * INT64 * call.rows)
        kept = (tape.give(INT64 * logits),) if picked else ()
        blocks = [_blocks_of(layer.attention) for layer in stack.layers]
        old = [
            [tuple(tape.give(size) for size in self._of_row(row, of[row.kind], new=0)) if row.call.past != 0 else ()
             for row in self.rows]
            for of in blocks
        ]  # fmt: skip
        for i, row in enumerate(self.rows):
            for windowed, (keys, item) in row.masks.items():
                self.masks_of[i, windowed] = tape.give(item * row.call.rows * keys)
        if self.apart:
            tape.keep(*(piece for of_layer in old for pair in of_layer for piece in pair))
        numbers = self._numbers(windows)
        hidden = given if self.embedded else self._embedding(stack, given)
        tables = self._tables(stack, hidden)
        last = last_two([(layer, window) for layer, window in zip(stack.layers, windows, strict=True)])
        for i, layer in enumerate(stack.layers):
            own = [numbers.get((row, i)) for row in range(len(self.rows))]
            if i in last:
                table = tables[0 if windows[i] or len(tables) == 1 else 1]
                hidden = self.layer(
                    layer, hidden, partial(self._attend_rows, blocks[i], table, old[i], own, windows[i] > 0)
                )
                continue
            tape.read(*(number for number in own if number is not None))
            for row, past in zip(self.rows, old[i], strict=True):
                joins = self._joins_row(row)
                for k, size in enumerate((self._added if joins else self._of_row)(row, blocks[i][row.kind])):
                    tape.keep(tape.make(size, *() if joins else past[k : k + 1]))
        out = self._norm(stack.norm, hidden, call.rows, stack.width)
        if picked:
            out = self._make(logits * stack.width, out, *kept)
        size = logits * stack.vocabulary * call.item_bytes
        result = tape.make(size, out)
        for _ in range(3 if capped else 0):
            result = tape.make(size, result)
        tape.keep(result)
        return tape

    def _numbers(self, windows: Sequence[int]) -> dict[tuple[int, int], Piece]:
        """Record the length counters of caches that have a window, or keep the past apart, until they are extended.

        Returns:
            (row, layer) -> the counter of a row without a past; the counters of other rows are read at once.
        """
        found: dict[tuple[int, int], Piece] = {}
        for i, row in enumerate(self.rows):
            made = {(i, layer): self.tape.make(INT64) for layer, window in enumerate(windows) if window or self.apart}
            if row.call.past == 0:
                found |= made
            else:
                for number in made.values():
                    self.tape.read(number)
        return found

    def _token_positions(self) -> Piece:
        return self.given_positions

    def _attend_rows(
        self,
        blocks: Sequence[AttentionBlock] | Sequence[LatentBlock],
        table: tuple[Piece, ...],
        old: Sequence[tuple[Piece, ...]],
        numbers: Sequence[Piece | None],
        windowed: bool,
        x: Piece,
    ) -> Piece:
        """Record attention with its projections: all caches are extended, then each row attends in its own call."""
        block, rows = blocks[0], self.call.rows
        if isinstance(block, LatentBlock):
            return self._attend_latents(cast("Sequence[LatentBlock]", blocks), table, old, x)
        blocks = cast("Sequence[AttentionBlock]", blocks)
        if block.fused:
            q = k = v = self._make(3 * rows * block.width, x)
        else:
            q, k, v = self._projected(block, x, table)
        caches = []
        for row, past, number in zip(self.rows, old, numbers, strict=True):
            if number is not None:
                self.tape.read(number)
            sizes = self._of_row(row, blocks[row.kind])
            added = [k, v]
            if self._joins_row(row):
                of_row = zip(self._added(row, blocks[row.kind]), added, strict=True)
                added = [self.tape.make(size, new) for size, new in of_row]
                self.tape.keep(*added)
            pairs = zip(sizes, added, strict=True)
            caches.append([self.tape.make(size, *past[i : i + 1], new) for i, (size, new) in enumerate(pairs)])
            self.tape.keep(*() if self._joins_row(row) else caches[-1])
        results = []
        for i, (row, (keys, values)) in enumerate(zip(self.rows, caches, strict=True)):
            own = DecoderTape(row.call, row.branches, self.tape)
            # Queries that were joined lie head by head, of all rows together.
            copied = block.fused or block.pairs or not row.branches.one_token
            mask = self.masks_of.get((i, windowed))
            results.append(own._core(blocks[row.kind], q, keys, values, mask, copied=copied))
        core = results[0] if len(results) == 1 else self._make(rows * block.heads * block.head_dim, *results)
        return self._make(rows * block.width, core)

    def _attend_latents(
        self, blocks: Sequence[LatentBlock], table: tuple[Piece, ...], old: Sequence[tuple[Piece, ...]], x: Piece
    ) -> Piece:
        """Record latent attention: rows that expand their latents share one projection, others absorb it.

        Branches: if none absorbs, all caches are extended before the projection, else each in its turn.

        Source: :mod:`costproof.models.decoding.absorbed`, :class:`~costproof.models.decoding.modules.RowsCache`.
        """
        tape, block, heads = self.tape, blocks[0], blocks[0].heads
        width, alone = block.nope + block.rope, len(self.rows) == 1
        q, turned, *new = self._latent_projected(block, x, table)
        absorbing = any(blocks[row.kind].absorbed for row in self.rows)
        found: dict[int, Piece] = {}
        queries: dict[int, Piece] = {}
        caches = []
        tapes = [DecoderTape(row.call, row.branches, tape) for row in self.rows]
        for i, (row, own, past) in enumerate(zip(self.rows, tapes, old, strict=True)):
            mine, mask = blocks[row.kind], self.masks_of.get((i, False))
            caches.append([tape.make(n, *past[k : k + 1], new[k]) for k, n in enumerate(self._of_row(row, block))])
            tape.keep(*caches[-1])
            if mine.absorbed:
                copied = alone and not row.branches.one_sequence
                found[i] = own._absorbed(mine, q, turned, caches[-1], mask, copied=copied)
            else:
                queries[i] = own._make(row.call.rows * heads * width, q, turned) if absorbing else q
        rows = [self.rows[i] for i in queries]
        if rows:
            context = [caches[i] for i in queries]
            if not absorbing and not any(row.call.past != 0 for row in rows):
                context = [new]
            elif len(rows) > 1:
                sizes = zip(*(self._of_row(row, block) for row in rows), strict=True)
                pieces = zip(*context, strict=True)
                context = [[tape.make(sympy.Add(*n), *x) for n, x in zip(sizes, pieces, strict=True)]]
            if not absorbing:
                queries = dict.fromkeys(queries, self._make(self.call.rows * heads * width, q, turned))
            keys = sympy.Add(*(row.call.batch * (row.call.past + row.call.tokens) for row in rows))
            joined, expanded = self._expanded(block, keys, context[0])
            for i, of_row in queries.items():
                mask, packed = self.masks_of.get((i, False)), (not absorbing, True)
                mine = blocks[self.rows[i].kind]
                found[i] = tapes[i]._latent_core(mine, of_row, joined, expanded, mask, packed=packed)
        results = [found[i] for i in range(len(found))]
        core = results[0] if alone else self._make(self.call.rows * heads * block.value_dim, *results)
        return self._make(self.call.rows * block.width, core)

    def _joins_row(self, row: TapeRow) -> bool:
        """Return whether a row concatenates its separately cached past with its new keys and values."""
        return self.apart and row.call.past != 0

    def _added(self, row: TapeRow, block: AttentionBlock | LatentBlock) -> tuple[Size, Size]:
        """Return the bytes of the new keys, and of the new values, of a row in a layer."""
        (keys, values), old = self._of_row(row, block), self._of_row(row, block, new=0)
        return keys - old[0], values - old[1]

    def _of_row(self, row: TapeRow, block: AttentionBlock | LatentBlock, new: Size | None = None) -> tuple[Size, Size]:
        """Return the bytes of the keys, and of the values, that a layer caches for the sequences of one row.

        They are counted after the call, or before it if ``new`` is 0.

        Args:
            row: the row.
            block: attention of the layer to the row.
            new: tokens that the call adds (default: its own).
        """
        keys = DecoderTape(row.call, row.branches, self.tape)._keys(block) - (0 if new is None else row.call.tokens)
        tokens = row.call.batch * keys * row.call.item_bytes
        if isinstance(block, LatentBlock):
            return tokens * block.rank, tokens * block.rope
        size = tokens * block.kv_heads * block.head_dim
        return size, size


def _blocks_of(attention: object) -> Sequence[AttentionBlock] | Sequence[LatentBlock]:
    """Return the attention block of each kind of rows."""
    assert isinstance(attention, PackedBlock | PackedLatentBlock)
    return attention.blocks


def decoder_tapes(
    config: DecoderSizes,
    workload: Workload,
    stack: Callable[[StackCall], DecoderStack],
    *,
    capped: bool = False,
    embedded: bool = False,
    apart: bool = False,
    shards: Shards | None = None,
) -> dict[tuple[str, str, str], MemoryTape]:
    """Return the memory tapes of the prompt and of a step at context P, by (stage, invocation, part).

    Args:
        embedded: whether the prompt is given as embeddings, as with images in it.
        apart: whether the cache keeps the prompt apart from later tokens.
        stack: returns the layers of the decoder in a call.
        capped: whether logits pass a soft cap.
        shards: of a rank, if the workload runs on several devices.

    Branches: some operators copy an argument unless one of its dimensions is 1.

    Raises:
        Incomplete: a loop over experts decides by values what it allocates.
    """
    _check_experts(workload)
    calls = {("prefill", "prompt", "prefill"): prompt_call(past=workload.past > 0)}
    if workload.new_tokens > 0:
        calls["decode", "steps", "step"] = StackCall(sym("B"), 1, sym("b"), past=CONTEXT)
    found = {}
    for name, call in calls.items():
        branches = _branches(config, workload, call, shards)
        rank = ALONE if shards is None else shards.steps(workload, call)
        whole = call
        if rank.sharing is not None and call.past == 0:
            whole = replace(call, tokens=call.tokens * rank.sharing)
        seen = _given_masks(config, workload, whole, None if rank.layers is None else rank.layers)
        masks = tuple(seen.items())
        layers, windows = stack(call), tuple(windows_of(config))
        given = embedded and call.past != CONTEXT
        found[name] = _recorded_tape(
            call, branches, layers, windows, positions_kept(workload, call), masks, capped, given, apart, rank
        )
    return found


def _branches(config: DecoderSizes, workload: Workload, call: StackCall, shards: Shards | None = None) -> CopyBranches:
    """Return the sizes of a call that decide whether its operators copy an argument or use a view of it."""
    heads, kv_heads = config.heads, config.kv_heads
    if shards is not None and shards.by_heads:
        heads, kv_heads = heads // shards.mesh.cp, kv_heads // shards.mesh.cp
    if shards is not None and "attention" in shards.plan.split:
        heads, kv_heads = heads // shards.mesh.tp, max(1, kv_heads // shards.mesh.tp)
    one_token = call.past == CONTEXT or workload.text_tokens == 1
    return CopyBranches(
        one_sequence=workload.own_batch == 1,
        one_token=one_token,
        one_head=heads == 1,
        shared=kv_heads < heads,
        one_shared=kv_heads == 1 < heads,
        wide=workload.dtype == "float32",
        one_key=one_token and call.past == 0,
        wide_heads=config.head_dim > _WIDEST_SHARED,
        flash=workload.attention == FLASH,
        padded_heads=config.head_dim % WHOLE_HEADS != 0,
    )


def row_tapes(
    config: RowSizes,
    workload: Workload,
    stack: Callable[[StackCall], DecoderStack],
    *,
    capped: bool = False,
    embedded: bool = False,
    apart: bool = False,
    axes: int = 1,
) -> dict[tuple[str, str, str], MemoryTape]:
    """Return the memory tape of the packed call of a batch of rows, by (stage, invocation, part).

    Sizes of the rows are numbers, those of the configuration symbols. Arguments are those of :func:`decoder_tapes`, and
    the number of positions of a token.

    Raises:
        Incomplete: a loop over experts decides by values what it allocates.
    """
    _check_experts(workload)
    call, item = prompt_call(past=False), sym("b")
    assert is_packed(workload, call)
    kinds = {row: kind for kind, rows in enumerate(row_kinds(workload, config)) for row in rows}
    each = []
    for row in workload.rows:
        one, whole = workload.of_row(row), prompt_call(past=row.past > 0)
        sizes = {sym("S"): row.new, CACHED: row.past}
        masks = {
            windowed: (sympy.sympify(keys).xreplace(sizes), size)
            for windowed, (keys, size) in _given_masks(config, one, whole).items()
        }
        own = StackCall(row.count, row.new, item, past=row.past)
        branches = replace(_branches(config, one, whole), joined=len(workload.rows) > 1)
        each.append(TapeRow(own, branches, kinds[row], masks))
    logits = sum(row.count * row.logits for row in workload.rows)
    packed = StackCall(1, workload.text_tokens, item)
    branches = _branches(config, workload, packed)
    tape = RowsTape(packed, branches, rows=tuple(each), embedded=embedded, apart=apart, axes=axes).record_rows(
        stack(call), tuple(windows_of(config)), logits, capped=capped, picked=logits < workload.text_tokens
    )
    return {("prefill", ROWS_INVOCATION, "rows"): tape}


class RowSizes(DecoderSizes, WithRows, Protocol):
    """Sizes of a decoder that also decide into which kinds the rows of a batch fall."""


def _check_experts(workload: Workload) -> None:
    if workload.experts == "eager":
        raise Incomplete(
            "the memory of a loop over experts depends on the router's choices", where="--experts eager",
            expected="grouped_mm or batched_mm", fix="leave --experts out",
        )  # fmt: skip


@lru_cache(maxsize=64)
def _recorded_tape(
    call: StackCall,
    branches: CopyBranches,
    stack: DecoderStack,
    windows: tuple[int, ...],
    positions: Size,
    masks: tuple[tuple[bool, tuple[Size, Size]], ...],
    capped: bool,
    embedded: bool,
    apart: bool,
    rank: RankSteps,
) -> MemoryTape:
    """Return the memory tape of a call, memoized, since calls that differ only in sizes share one tape."""
    return DecoderTape(call, branches, apart=apart, rank=rank).record(
        stack, windows, positions, dict(masks), capped=capped, embedded=embedded
    )


def _given_masks(
    config: DecoderSizes, workload: Workload, call: StackCall, layers: range | None = None
) -> dict[bool, tuple[Size, Size]]:
    """Return the mask, (keys, bytes per element), that layers with (true) and without a window (false) are given.

    Branches: fused attention gets a mask only if keys are outside of the window, or if several tokens follow others.
    """
    windows = windows_of(config)
    windows = windows if layers is None else [windows[i] for i in layers]
    eager, window = workload.attention == "eager", max(windows)
    full = call.past + call.tokens
    seen = sym("text_window") - 1 + call.tokens if fills(workload, call, window) else full
    if eager or masked_chunk(workload, call):
        item = call.item_bytes if eager else 1
        found = {False: (full, item)} if not (window and config.one_mask) else {}
        return {**found, **({True: (seen, item)} if window else {})}
    return {True: (seen, 1)} if hides(workload, call, window) else {}
