"""Record the operators of page models on memory tapes: SAM, and how image tokens get into the prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from costproof.algebra.symbols import sym
from costproof.analytic.compose import StackCall
from costproof.analytic.costs import Size
from costproof.analytic.decoder_memory import masked_look_up
from costproof.analytic.embedding import INT64
from costproof.analytic.layer_memory import CopyBranches, LayerTape
from costproof.analytic.memory_tape import MemoryTape, Piece
from costproof.models.pages.config import SamConfig
from costproof.models.pages.formulas import SAM_LAYER, PageStructure, View, sam_neck, windows_per_side


def sam_tape(structure: PageStructure, view: View, sam: SamConfig, side: int, count: int, *, wide: bool) -> MemoryTape:
    """Return the memory tape of SAM on ``count`` views of ``side`` pixels.

    Layers of one kind, with windows or without, hold the same, so that one of each kind is recorded.

    Args:
        wide: whether the dtype of the run is float32.

    Source: ``UnlimitedOcrSamVisionEncoder`` (transformers).
    """
    n, hidden, grid = sym("n"), sym("sam_hidden"), sym("H") / sym("sam_patch")
    patches = side // sam.patch
    branches = CopyBranches(count == 1, patches == 1, sam.heads == 1, shared=False, wide=wide)
    made = _SamTape(StackCall(n, grid**2, sym("b")), branches, eager=structure.attention == "eager")
    table = (sym("sam_image") / sym("sam_patch")) ** 2 if view.sam_resampled else None
    pixels = made.tape.give(n * sym("in_channels") * sym("H") ** 2 * sym("b"))
    x = made.patches(pixels, hidden, grid, class_token=False, own_table=True, resampled=table, in_float32=True)
    whole = len({i for i in sam.global_layers if i < sam.layers})
    if whole:
        x = made.layer(SAM_LAYER, x, partial(made.attend, grid, patches))
    if whole < sam.layers:
        cells = -(-patches // sam.window)
        x = made.layer(SAM_LAYER, x, partial(made.attend_in_windows, grid, sam.window, cells, count, view.sam_padded))
    made.tape.keep(made.sequence(sam_neck(structure), x))
    return made.tape


@dataclass(slots=True)
class _SamTape(LayerTape):
    """Memory tape of SAM, or of the attention of its layers to windows."""

    eager: bool = False

    def attend_in_windows(self, grid: Size, window: int, cells: int, count: int, padded: bool, x: Piece) -> Piece:
        """Record attention within windows: padding, partition into windows, attention, and their reassembly.

        Args:
            window: side of a window in patches.
            cells: windows along a side of a view.
            count: number of views.
            padded: whether the grid is not a whole number of windows.

        Branches: cutting moves nothing if there is one window, or if windows are single patches.
        """
        rows, hidden = self.call.rows, sym("sam_hidden")
        side = sym("sam_window")
        number = self.call.batch * windows_per_side(grid, side) ** 2
        whole = number * side**2 * hidden
        x = self._make(whole, x)
        moved = cells > 1 and window > 1
        x = self._make(whole, x) if moved else x
        branches = replace(self.branches, one_sequence=count * cells**2 == 1, one_token=window == 1)
        inside = _SamTape(StackCall(number, side**2, self.call.item_bytes), branches, self.tape, self.eager)
        x = inside.attend(side, window, x)
        x = self._make(whole, x) if moved else x
        return self._make(rows * hidden, x) if padded else x

    def attend(self, side: Size, length: int, x: Piece) -> Piece:
        """Record attention within a square of patches, with relative-position biases; return the result.

        Args:
            side: the side of the square in patches.
            length: the same as a number.

        Source: ``UnlimitedOcrSamVisionAttention``, ``UnlimitedOcrSamVisionSdpaAttention`` (transformers).
        """
        branches, elements = self.branches, self.call.rows * sym("sam_hidden")
        each = self.call.rows * sym("sam_heads")
        whole = self._make(3 * elements, x)
        if not (branches.one_sequence or branches.one_head):
            whole = self._make(3 * elements, whole)
        scores = each * side**2
        if not self.eager:
            biases = self._biases(side, length, whole)
            result = self._fused(elements, each, (whole, biases))
        else:
            weights = self._make(scores, self._make(elements, whole), whole)
            biases = self._biases(side, length, whole, weights)
            weights = self._softmax(self._make(scores, weights, biases), scores)
            result = self._make(elements, weights, whole)
        return self._make(elements, self._in_order(result, elements))

    def _biases(self, side: Size, length: int, whole: Piece, *reads: Piece) -> Piece:
        """Record the relative-position biases: a table for each axis, its product with queries, and their sum.

        Args:
            whole: queries, keys and values.
            reads: pieces that the reshaping of the result refers to.

        Branches: products copy queries, and the sum is copied, unless there is one sequence with one head.
        """
        branches, elements = self.branches, self.call.rows * sym("sam_hidden")
        each = self.call.rows * sym("sam_heads")
        single = length == 1 or (branches.one_sequence and branches.one_head)
        tables = [self._table(side) for _ in range(2)]
        copied = (not single, not single and branches.one_sequence)
        sums = []
        for table, copy in zip(tables, copied, strict=True):
            copies = [self._make(elements, whole)] if copy else []
            sums.append(self._make(each * side, whole, table, *copies))
        biases = self._make(each * side**2, *sums)
        return biases if single else self._make(each * side**2, biases, *reads)

    def _table(self, side: Size) -> Piece:
        """Record the look-up of relative positions for all pairs of coordinates on an axis."""
        tape, width = self.tape, sym("sam_head_dim")
        resampled = self._make((2 * side - 1) * width)
        own = [tape.make(4 * side, tape.make(INT64 * side)) for _ in range(2)]
        pairs = tape.make(4 * side**2, tape.make(4 * side**2, *own))
        return self._make(side**2 * width, resampled, tape.make(INT64 * side**2, pairs))


def page_glue_tape(
    pages: Size, rows: tuple[Size, ...], parts: tuple[tuple[Size, ...], ...], *, masked: bool = False
) -> MemoryTape:
    """Return the memory tape of the operators between towers and decoder of a page model.

    Args:
        pages: their number.
        rows: rows of features of each kind of view, in all pages.
        parts: for each page, the rows of pieces that are made: each from the one before, for each kind of view.
        masked: whether the rank has some rows of the embedding's table.

    Source: ``UnlimitedOcrModel.get_image_features`` and ``forward`` (transformers).
    """
    tape, row = MemoryTape(), sym("text_hidden") * sym("b")
    prompt = sym("B") * sym("S")
    ids = tape.give(INT64 * prompt)
    given = [tape.give(n * row) for n in rows]
    if masked:
        embedded = masked_look_up(tape, prompt * sym("text_hidden"), prompt, sym("b"), ids)
    else:
        embedded = tape.make(prompt * row, ids)
    # Of all pages but the last only the results matter.
    others = tape.make((pages - 1) * sym("V") * row)
    made = []
    for features, steps in zip(given, parts, strict=True):
        piece = features
        for size in steps:
            piece = tape.make(size * row, piece)
        made.append(piece)
    page = tape.make(sym("V") * row, *made)
    joined = tape.make(pages * sym("V") * row, others, page)
    mask = tape.make(prompt, ids)
    tape.read(tape.make(1, tape.make(INT64, tape.make(INT64, mask))))
    tape.keep(others, page, tape.make(prompt * row, embedded, mask, joined))
    return tape
