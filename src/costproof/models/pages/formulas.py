"""Closed formulas that page models share: the SAM encoder, and a decoder with dense first layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import sympy

from costproof.algebra.series import ROW_SIZES, sum_over_rows
from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock, PackedBlock
from costproof.analytic.compose import (
    CONTAINER,
    ModulePart,
    StackCall,
    analytic_ledger,
    in_layer,
    invocation_nodes,
    prefill_and_decode,
    stage_nodes,
)
from costproof.analytic.costs import Layer, LayerCosts, Size, layer
from costproof.analytic.embedding import PickedPositions, PositionEmbedding
from costproof.analytic.experts import PLAIN
from costproof.analytic.feed_forward import ExpertMixture, Mlp
from costproof.analytic.norms import LayerNorm, LayerNorm2d
from costproof.analytic.patches import Conv2d, PatchEmbedding
from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS
from costproof.analytic.transformer import DecoderStack, TransformerLayer
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import ROWS_INVOCATION, AttentionKind, BatchRow, ExpertKernel, Logits
from costproof.models.decoding.formulas import DecoderStyle
from costproof.models.decoding.sharding import Part, Shards


@dataclass(frozen=True, slots=True)
class View:
    """One call of the vision towers, with the branches that the towers take in this call."""

    invocation: str
    """Name of the call in ledgers: ``global`` or ``crops``."""
    sam_resampled: bool
    """Whether SAM's position table is resampled, because its grid differs from this view's."""
    clip_resampled: bool
    """Whether CLIP's position table is resampled."""
    sam_padded: bool = True
    """Whether SAM pads this view's grid to whole windows."""


@dataclass(frozen=True, slots=True)
class PageRank:
    """What decides the form of the decoder's formulas on one of several devices."""

    shards: Shards
    one_sequence: bool
    """Whether the batch of the device has a single sequence."""
    one_token: bool
    """Whether each prompt has a single token, counting those of images."""


@dataclass(frozen=True, slots=True)
class PageStructure:
    """Facts about a model and a run that decide the form of formulas; all sizes are symbols.

    The default is the published DeepSeek-OCR on a prompt without a page.
    """

    views: tuple[View, ...] = ()
    """Global view first, then the crops, if any; empty for a text-only run."""
    sam_layers: int = 12
    sam_global_layers: tuple[int, ...] = (2, 5, 8, 11)
    second_layers: int = 24
    text_layers: int = 12
    text_dense: int = 1
    """Number of leading layers with a dense MLP; the others have mixtures of experts."""
    attention: AttentionKind = "sdpa"
    logits: Logits = "all"
    experts: ExpertKernel = "grouped_mm"
    decode: bool = True
    """Whether the run has decode steps."""
    remote: bool = False
    """Whether the run uses the vendor's code instead of transformers' classes, with other operators to count.

    SAM skips padding and resampling without effect, writes the norms of the neck in primitives, and has no module
    around the downsampling. CLIP has one projection for queries, keys and values, no module for the activation, and a
    patch embedding that never runs; it looks up positions before it resamples them. The page is written into the prompt
    in place. The decoder builds a mask for every prompt and a rotary table per layer, and loops over its experts.
    """
    rows: tuple[tuple[BatchRow, ...], ...] = ()
    """Rows of a batch of unequal sequences by kind (:func:`~costproof.models.decoding.names.row_kinds`)."""
    rank: PageRank | None = None
    """The device whose share of the decoder is counted; ``None`` for one device. Each has the whole towers."""

    def of_part(self, size: Size, part: Part) -> Size:
        """Return a rank's share of a number of heads or of an inner width of the decoder."""
        return size if self.rank is None else self.rank.shards.of_part(size, part)

    @property
    def splits_embedding(self) -> bool:
        """Return whether the rank has some rows of the embedding's table.

        Branches: ranks along tp share it.
        """
        return self.rank is not None and self.rank.shards.mesh.tp > 1

    @property
    def vocabulary(self) -> Size:
        """Return the columns of the logits, including padding of uneven shards."""
        return sym("text_vocab") if self.rank is None else self.rank.shards.padded_vocabulary()

    @property
    def pages(self) -> Size:
        """Return the number of pages in the prefill.

        Branches: rows of a batch, which have any number; else each sequence has one.
        """
        return sym("n") if self.rows else sym("B")

    def packed(self, call: StackCall) -> bool:
        """Return whether a call processes the rows of a batch as one packed sequence."""
        return bool(self.rows) and call.past == 0

    def row_calls(self, call: StackCall) -> Iterator[tuple[StackCall, bool]]:
        """Yield (sizes of a row, whether fused attention needs a mask) for each kind of rows.

        Branches: a row may have no past; several tokens after a past need a mask.
        """
        batch, tokens, past = ROW_SIZES
        for row, *_ in self.rows:
            masked = row.past > 0 and row.new > 1 and self.attention == "sdpa"
            yield StackCall(batch, tokens, call.item_bytes, past=past if row.past else 0), masked


def windows_per_side(grid: Size, window: Size) -> Size:
    """Return the number of windows along a side of a padded grid: ceiling(grid / window)."""
    if isinstance(grid, int) and isinstance(window, int):
        return -(-grid // window)
    return sympy.ceiling(sympy.sympify(grid) / window)


@layer
class WindowPartition:
    """Padding of [views, grid, grid, width] to whole windows of window² tokens, and the partition into windows.

    Along each side there are ceiling(grid / window) windows, so the attention that follows works on
    views x ceiling(grid / window)² windows of window² tokens: the padding is computed like the rest.
    Padding moves data and computes nothing. It reads views x grid² x width elements and writes
    views x (ceiling(grid / window) window)² x width, also when an implementation pads by nothing. Cutting,
    putting together and dropping the padding afterwards are views.
    """

    name: ClassVar[str] = "window"
    title: ClassVar[str] = "Window partition with padding"
    source: ClassVar[str] = (
        "Li et al. 2022, Exploring Plain Vision Transformer Backbones (ViTDet); SAM window_partition"
    )

    views: Size
    grid: Size
    window: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        padded = windows_per_side(self.grid, self.window) * self.window
        return LayerCosts(
            input_bytes=self.views * self.grid**2 * self.width * self.item_bytes,
            output_bytes=self.views * padded**2 * self.width * self.item_bytes,
            intermediate_bytes=0,
        )


@layer
class RelativePosition:
    """Biases q[y, x] · R_h[y - y'] + q[y, x] · R_w[x - x'] by relative position, for scores on a side x side grid.

    Step by step, per axis (there are two, so everything but the last step counts twice):

    1. The table of ``entries`` x d is resampled to 2 side - 1 entries, linearly, even if it already
       has that length: 2 taps, so 3 operations per element: 3 d (2 side - 1).
    2. The coordinates are floating-point arithmetic: two scalings of side numbers, a difference and a
       shift of side² numbers: 2 side + 2 side².
    3. A look-up gives [side, side, d]: no FLOPs.
    4. One einsum "bhwc,hkc->bhwk" over sequences x side² queries, side keys along the axis and d
       channels: 2 sequences side³ d FLOPs.
    5. The two axes are added with broadcasting: sequences side⁴ operations, once.

        flops = 4 sequences side³ d
        vector_flops = 6 d (2 side - 1) (if resampled) + 4 side + 4 side² + sequences side⁴

    Adding the bias to the scores is counted by the attention, and so are the bytes of the queries,
    which both read. The layer owns both tables, 2 entries d parameters, and reads them whole; without
    step 1 the look-up reads them itself, side² rows of d each; whatever is fused, min(side², entries) rows.

    Branches: of more rows than entries some are the same.

    Unfused, twice, per axis: the resampled table is written and read; of the coordinates each scaling is written and
    read, 16 side bytes, and difference and shift, 16 side², in float32; the looked-up rows are written and read, side²
    d; the einsum reads the queries once more and writes sequences side³ elements, which the sum of both axes reads. The
    biases are written once, and read by attention.
    """

    name: ClassVar[str] = "relative_position"
    title: ClassVar[str] = "Decomposed relative positions"
    source: ClassVar[str] = "Li et al. 2021, MViTv2, equation 4; SAM get_rel_pos and get_decomposed_rel_pos"

    sequences: Size
    """Number of views or windows, times the number of heads."""
    side: Size
    head_dim: Size
    entries: Size
    """Number of rows of one position table."""
    item_bytes: Size
    resampled: bool = True
    """Whether step 1 runs; an implementation may skip it if the table already has the required length."""

    def costs(self) -> LayerCosts:
        tables = 2 * self.entries * self.head_dim
        resampled = 2 * (2 * self.side - 1) * self.head_dim if self.resampled else 0
        looked_up = 2 * self.side**2 * self.head_dim
        again = looked_up - 2 * sympy.Min(self.side**2, self.entries) * self.head_dim
        each_axis = resampled + looked_up + self.sequences * (self.side**2 * self.head_dim + 2 * self.side**3)
        return LayerCosts(
            params=tables,
            weight_bytes=tables * self.item_bytes,
            weight_read_bytes=(tables if self.resampled else looked_up) * self.item_bytes,
            shared_weight_bytes=0 if self.resampled else again * self.item_bytes,
            flops={"einsum": 4 * self.sequences * self.side**3 * self.head_dim},
            vector_flops={
                "resample": 6 * self.head_dim * (2 * self.side - 1) if self.resampled else 0,
                "elementwise": 4 * self.side + 4 * self.side**2 + self.sequences * self.side**4,
            },
            intermediate_bytes=2 * (16 * self.side + 16 * self.side**2)
            + 2 * (each_axis + self.sequences * self.side**4) * self.item_bytes,
        )


SAM_ATTENTION: Final = AttentionBlock(
    width=sym("sam_hidden"),
    heads=sym("sam_heads"),
    kv_heads=sym("sam_heads"),
    head_dim=sym("sam_head_dim"),
    inner=sym("sam_hidden"),
    bias=("q", "k", "v", "out"),
    fused=True,
    cached=False,
    mask="inside",
)
"""Attention of SAM without its relative-position biases."""
SAM_LAYER: Final = TransformerLayer(
    sym("sam_hidden"), SAM_ATTENTION, Mlp(sym("sam_hidden"), sym("sam_mlp"), "gelu"), norm="layer"
)
"""Layer of SAM without the partition into windows."""


def sam_parts(structure: PageStructure, view: View) -> tuple[ModulePart, ...]:
    """Return all module parts of SAM on n views of H x H pixels; H is a multiple of 4 patches.

    Source: Kirillov et al. 2023, Segment Anything; ``UnlimitedOcrSamVisionEncoder`` (transformers),
    ``ImageEncoderViT`` (vendor).
    """
    n, side, b, hidden = sym("n"), sym("H"), sym("b"), sym("sam_hidden")
    grid = side / sym("sam_patch")
    return (
        ModulePart(
            "sam", (PositionEmbedding(n, grid, hidden, sym("sam_image") / sym("sam_patch"), b, view.sam_resampled),)
        ),
        ModulePart("sam.patches"),
        ModulePart(
            "sam.patches.projection", (PatchEmbedding(n, sym("in_channels"), hidden, sym("sam_patch"), side, grid, b),)
        ),
        *(p for i in range(structure.sam_layers) for p in in_layer(i, _sam_layer(structure, view, i))),
        *sam_neck(structure),
    )


def sam_neck(structure: PageStructure) -> tuple[ModulePart, ...]:
    """Return the parts of SAM after its layers, in the order in which they run."""
    n, b, hidden, grid = sym("n"), sym("b"), sym("sam_hidden"), sym("H") / sym("sam_patch")
    out, down1, down2 = sym("sam_out"), sym("sam_down1"), sym("sam_down2")
    norm = (LayerNorm2d if structure.remote else LayerNorm)(n * grid**2, out, b)
    return (
        ModulePart("sam.neck"),
        ModulePart("sam.neck.conv1", (Conv2d(n, hidden, out, 1, grid, grid, b, bias=False),)),
        ModulePart("sam.neck.norm1", (norm,)),
        ModulePart("sam.neck.conv2", (Conv2d(n, out, out, 3, grid, grid, b, bias=False),)),
        ModulePart("sam.neck.norm2", (norm,)),
        *(() if structure.remote else (ModulePart("sam.downsample"),)),
        ModulePart("sam.downsample.conv1", (Conv2d(n, out, down1, 3, grid, grid / 2, b, bias=False),)),
        ModulePart("sam.downsample.conv2", (Conv2d(n, down1, down2, 3, grid / 2, grid / 4, b, bias=False),)),
    )


def _sam_layer(structure: PageStructure, view: View, i: int) -> tuple[ModulePart, ...]:
    n, b, hidden, heads = sym("n"), sym("b"), sym("sam_hidden"), sym("sam_heads")
    grid, window, head_dim = sym("H") / sym("sam_patch"), sym("sam_window"), sym("sam_head_dim")
    remote, whole = structure.remote, i in structure.sam_global_layers
    if whole:
        sequences, length, table = n, grid, sym("sam_image") / sym("sam_patch")
    else:
        sequences, length, table = n * windows_per_side(grid, window) ** 2, window, window
    # transformers also pads by zero if windows fit, and also resamples tables to their own length.
    cut = not whole and (view.sam_padded or not remote)
    resampled = not remote or (whole and view.sam_resampled)
    attention = replace(
        SAM_ATTENTION,
        written_out=structure.attention == "eager",
        scaled="queries" if structure.attention == "eager" else "scores",
        beside=(RelativePosition(sequences * heads, length, head_dim, 2 * table - 1, b, resampled),),
    )
    beside = (WindowPartition(n, grid, window, hidden, b),) if cut else ()
    layer = replace(SAM_LAYER, attention=attention, beside=beside)
    return layer.parts("sam.layer", StackCall(n, grid**2, b), StackCall(sequences, length**2, b))


def page_decoder_parts(
    structure: PageStructure, call: StackCall, positions: Size, glue: Layer
) -> tuple[ModulePart, ...]:
    """Return all module parts of the decoder in one call, from the root to the output projection.

    Args:
        positions: number of positions per sequence that get logits.
        glue: layer of the module that contains decoder and towers; it owns the newline and the separator.

    Branches: of several ranks, the gather of a single row needs no concatenation.

    Source: Dai et al. 2024, DeepSeekMoE; ``UnlimitedOcrTextModel`` (transformers), ``DeepseekV2Model`` (vendor),
    ``LlamaAttention`` (transformers 4.46).
    """
    remote, rank = structure.remote, structure.rank
    parts = (
        ModulePart("root", _picked(structure, call) or (CONTAINER,)),
        ModulePart("model", (glue,)),
        *(() if remote else (ModulePart("text"),)),
        *page_decoder(structure, call).parts("text", call, positions),
    )
    if rank is None:
        return parts
    one_row = rank.one_sequence and (positions == 1 or rank.one_token)
    return tuple(rank.shards.with_collectives(parts, call, positions, one_row=one_row, one_sequence=rank.one_sequence))


def _picked(structure: PageStructure, call: StackCall) -> tuple[PickedPositions, ...]:
    """Return the layer that selects the positions with logits from all rows; empty if all positions have logits.

    Branches: whether all have them.
    """
    if not structure.packed(call) or all(row.logits == row.new for kind in structure.rows for row in kind):
        return ()
    return (PickedPositions(call.batch * sym("L"), sym("text_hidden"), call.item_bytes),)


def page_decoder(structure: PageStructure, call: StackCall) -> DecoderStack:
    """Return the layers of the decoder in one call; for their sources see :func:`page_decoder_parts`.

    Branches: the first layers of a configuration are dense; a step of one token has no mask in the vendor's code;
    rows of a batch attend by themselves; ranks that share experts hold a part of them.
    """
    remote = structure.remote
    hidden, head_dim, moe = sym("text_hidden"), sym("text_head_dim"), sym("text_moe")
    # The vendor's code builds no mask for a single token.
    masked = call.tokens != 1 if remote else structure.attention == "eager"
    heads, kv_heads, rank = sym("text_heads"), sym("text_kv_heads"), structure.rank
    attention = AttentionBlock(
        width=hidden,
        heads=structure.of_part(heads, "attention"),
        kv_heads=kv_heads if rank is None else rank.shards.own_kv_heads(kv_heads),
        head_dim=head_dim,
        rotary=head_dim,
        own_table=remote,
        causal=True,
        mask="input" if masked else "none",
        written_out=remote or structure.attention == "eager",
    )
    dense = Mlp(hidden, structure.of_part(sym("text_intermediate"), "mlp"), "silu", gated=True, bias=False)
    mixture = ExpertMixture(
        width=hidden,
        inner=structure.of_part(moe, "experts"),
        held=sym("text_experts") / sym("ep") if rank is not None and rank.shards.mesh.ep > 1 else None,
        batches=1 if rank is None else rank.shards.batches,
        experts=sym("text_experts"),
        top_k=sym("text_topk"),
        function="silu",
        shared=structure.of_part(sym("text_shared") * moe, "shared"),
        batched=structure.experts == "batched_mm",
        looped=remote,
    )
    block: AttentionBlock | PackedBlock = attention
    if structure.packed(call):
        each = list(structure.row_calls(call))
        blocks = tuple(replace(attention, mask="boolean") if masked else attention for _, masked in each)
        several = sum(map(len, structure.rows)) > 1
        block = PackedBlock(blocks, tuple(own for own, _ in each), several)
    made: dict[tuple[str, str], TransformerLayer] = {}
    shards = None if rank is None else rank.shards
    if shards is not None:
        for i, pair in enumerate(shards.pairs):
            routed = replace(
                mixture, exchanged=shards.exchanged(i, step=False), slices=shards.slices, sliced=shards.sliced
            )
            made[pair] = TransformerLayer(hidden, block, routed)
    first, other = TransformerLayer(hidden, block, dense), TransformerLayer(hidden, block, mixture)
    others = [made[pair] for pair in shards.pairs] if made and shards else [other] * structure.text_layers
    return DecoderStack(
        width=hidden,
        vocabulary=sym("text_vocab") if rank is None else rank.shards.vocabulary("embedding"),
        head=None if rank is None else rank.shards.vocabulary("head"),
        layers=(*[first] * structure.text_dense, *others)[: structure.text_layers],
        table=0 if remote else head_dim,
    )


TEXT_STYLE: Final = DecoderStyle(routing=PLAIN, shared_experts=sym("text_shared") * sym("text_moe"))
"""Differences of the decoder from the default one, by which ranks divide it."""
ANY_VIEW: Final = View("", sam_resampled=False, clip_resampled=False)
"""Placeholder view for parameters, which do not depend on the view."""

TowerParts = Callable[[View], Mapping[str, tuple[tuple[ModulePart, ...], Size]]]
"""Function from a view to the parts of each stage, with the bytes of the activations that enter and leave it."""


def page_ledger(
    structure: PageStructure,
    towers: TowerParts,
    glue: Callable[[StackCall], Layer],
    border: Callable[[StackCall, Size], Size],
    names: Mapping[str, str],
    stages: tuple[str, ...],
) -> Ledger:
    """Return the symbolic ledger of all stages, with formulas (``exprs``) and without numbers (``costs``).

    Decode nodes hold the sum over N steps at contexts P, P+1, ..., P+N-1.

    Args:
        glue: call -> the layer of the module that contains decoder and towers.
        border: (call, positions that get logits) -> bytes of the activations that enter and leave the decoder.
        names: role -> module path.
    """

    def positions(call: StackCall) -> Size:
        if structure.packed(call):
            return sym("L")
        return 1 if structure.logits == "last" and not structure.remote else call.tokens

    def modules(call: StackCall) -> tuple[ModulePart, ...]:
        return page_decoder_parts(structure, call, positions(call), glue(call))

    def border_of(call: StackCall) -> Size:
        return border(call, positions(call))

    def nodes() -> Iterator[CostNode]:
        seen = [(view.invocation, towers(view)) for view in structure.views]
        for stage, (parts, entering) in towers(ANY_VIEW).items():
            yield from stage_nodes(stage, parts, names)
            for invocation, found in seen:
                yield from invocation_nodes(stage, invocation, found[stage][0], names, border=entering)
        first = ROWS_INVOCATION if structure.rows else "prompt"
        yield from prefill_and_decode(modules, names, border=border_of, decode=structure.decode, first_id=first)

    return analytic_ledger(nodes(), stages, parallel=structure.rank is not None)


def decoder_border(structure: PageStructure, call: StackCall, positions: Size, page_rows: Size) -> Size:
    """Return the activation bytes that enter and leave a native decoder in one call, without the cache.

    Args:
        positions: number of positions per sequence that get logits.
        page_rows: rows of features that enter and leave the module around the decoder in a prefill with a page.
    """
    elements = call.batch * positions * structure.vocabulary
    if structure.attention == "eager":
        elements += sympy.Add(*_mask_elements(structure, call))
    if call.past == 0 and structure.views:
        elements += structure.pages * page_rows * sym("text_hidden")
    return elements * call.item_bytes


def _mask_elements(structure: PageStructure, call: StackCall) -> Iterator[Size]:
    """Yield the numbers of elements of the masks that eager attention gets.

    Branches: rows of a batch have a mask each.
    """
    if not structure.packed(call):
        yield call.batch * call.tokens * (call.past + call.tokens)
        return
    for kind, (row, _) in enumerate(structure.row_calls(call), 1):
        yield sum_over_rows(row.batch * row.tokens * (row.past + row.tokens), kind)


_SYMBOLS: Final[dict[str, tuple[str, str]]] = {
    "n": ("n", "views in the invocation: one per page, or all crops; pages in a batch of rows"),
    "H": ("H", "side of a view in pixels"),
    "H_g": ("H_g", "side of the global view in pixels"),
    "H_c": ("H_c", "side of a crop in pixels"),
    "grid_w": ("g_w", "columns of the crop grid"),
    "grid_h": ("g_h", "rows of the crop grid"),
    "S": ("S", "tokens of the prompt, vision tokens included"),
    "V": ("V", "vision tokens per sequence"),
    "in_channels": ("c_{in}", "channels of the image"),
    "sam_hidden": ("h_{sam}", "width of the SAM encoder"),
    "sam_heads": ("a_{sam}", "attention heads of the SAM encoder"),
    "sam_head_dim": ("d_{sam}", "width of one head of the SAM encoder"),
    "sam_mlp": ("m_{sam}", "inner width of the SAM MLPs"),
    "sam_layers": (r"\ell_{sam}", "layers of the SAM encoder"),
    "sam_window": ("w_{sam}", "side of a SAM attention window in patches"),
    "sam_patch": ("p_{sam}", "side of a SAM patch in pixels"),
    "sam_image": ("I_{sam}", "side in pixels of the view that the SAM position tables are made for"),
    "sam_out": ("o_{sam}", "channels of the SAM neck"),
    "sam_down1": ("d_{1}", "channels of the first downsampling convolution"),
    "sam_down2": ("d_{2}", "channels of the second downsampling convolution"),
}


def page_symbols(own: Mapping[str, tuple[str, str]]) -> dict[str, SymbolDoc]:
    """Return the notation and the meaning of every symbol, including those of a second tower."""
    return {**RUN_SYMBOLS, **DECODER_SYMBOLS, **{n: SymbolDoc(*doc) for n, doc in {**_SYMBOLS, **own}.items()}}
