"""Closed formulas of DeepSeek-OCR: CLIP on SAM's features, projector, image tokens in the prompt, all stages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall, in_layer
from costproof.analytic.costs import Layer, LayerCosts, Size, layer
from costproof.analytic.embedding import ClassAndPositions, Embedding, PositionIds
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.layer_memory import CopyBranches, LayerTape
from costproof.analytic.linear import Linear
from costproof.analytic.memory_tape import MemoryTape
from costproof.analytic.norms import LayerNorm
from costproof.analytic.patches import Conv2d
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.node import Ledger
from costproof.models.families.deepseek_ocr.config import IMAGE_STAGES, STAGES, OcrConfig
from costproof.models.families.deepseek_ocr.names import NATIVE_NAMES
from costproof.models.pages.formulas import PageStructure, View, decoder_border, page_ledger, page_symbols, sam_parts
from costproof.models.pages.memory import page_glue_tape, sam_tape


def ocr_ledger(structure: PageStructure, names: Mapping[str, str] = NATIVE_NAMES) -> Ledger:
    """Return the symbolic ledger of all stages; see :func:`~costproof.models.pages.formulas.page_ledger`.

    Args:
        names: role -> module path, see :mod:`costproof.models.families.deepseek_ocr.names`.
    """

    def towers(view: View) -> dict[str, tuple[tuple[ModulePart, ...], Size]]:
        parts = (sam_parts(structure, view), _clip_parts(structure, view), _projector(structure))
        return {stage: (made, _tower_border(stage)) for stage, made in zip(IMAGE_STAGES, parts, strict=True)}

    def glue(call: StackCall) -> Layer:
        return _glue(structure, call)

    return page_ledger(structure, towers, glue, partial(_decoder_border, structure), names, STAGES)


EMPTY_SIDE: Final = 64
"""Side, in pixels, of the empty views that the vendor's code requires in a text-only run."""


def _projector(structure: PageStructure) -> tuple[ModulePart, ...]:
    """Return the parts that concatenate the features of both towers and project them, on (H / 4 sam_patch)² tokens.

    Source: Wei et al. 2025, DeepSeek-OCR, section 3.2; ``UnlimitedOcrVisionModel`` (transformers),
    ``MlpProjector`` (vendor).
    """
    b, clip, sam = sym("b"), sym("clip_hidden"), sym("sam_down2")
    tokens = sym("n") * (sym("H") / (4 * sym("sam_patch"))) ** 2
    linear = Linear(tokens, clip + sam, sym("text_hidden"), b)
    if structure.remote:
        return ModulePart("projector"), ModulePart("projector.linear", (linear,))
    return ModulePart("vision", (FeatureConcat(tokens, clip, sam, b),)), ModulePart("projector", (linear,))


def _glue(structure: PageStructure, call: StackCall) -> Layer:
    """Return the layer of the outer module, which writes image tokens into the embedded prompt.

    Branches: a call of 1 token is a decode step, which has no page; a page has crops if it has a second view.
    """
    hidden, b, stride, prompt = sym("text_hidden"), sym("b"), 4 * sym("sam_patch"), call.tokens
    page, crops = prompt != 1 and len(structure.views) > 0, prompt != 1 and len(structure.views) > 1
    if not structure.remote:
        return ImageTokens(
            prompt_rows=call.rows,
            hidden=hidden,
            item_bytes=b,
            pages=structure.pages,
            grid=sym("H_g") / stride if page else 0,
            columns=sym("grid_w") if crops else 0,
            rows=sym("grid_h") if crops else 0,
            crop_grid=sym("H_c") / stride if crops else 0,
        )
    if prompt == 1:
        return PageInPlace(prompt, hidden, b, masked=False)
    channels = sym("in_channels")
    if not page:
        # The global view is empty, so the code does not check the crops.
        return PageInPlace(prompt, hidden, b, channels * EMPTY_SIDE**2)
    whole, grid = channels * sym("H_g") ** 2, sym("H_g") / stride
    features, tokens = grid**2, vision_tokens(grid)
    pixels = 2 * whole  # without crops, a view of zeros takes their place
    if crops:
        count = sym("grid_w") * sym("grid_h")
        pixels = whole + count * channels * sym("H_c") ** 2
        features += count * (sym("H_c") / stride) ** 2
        tokens = vision_tokens(grid, sym("grid_w"), sym("grid_h"), sym("H_c") / stride)
    towers = (sym("clip_hidden"), sym("sam_down2"))
    return PageInPlace(prompt, hidden, b, pixels, features, *towers, tokens, len(structure.views))


def _clip_parts(structure: PageStructure, view: View) -> tuple[ModulePart, ...]:
    """Return all parts of CLIP on n views of (H / 4 sam_patch)² features and a class token.

    Source: Radford et al. 2021, CLIP; ``UnlimitedOcrVisionEncoder`` (transformers), ``VitModel`` (vendor).
    """
    # The vendor's code always looks up positions, and has a patch embedding that never runs.
    always, resampled = structure.remote, view.clip_resampled
    n, b, hidden, entries, patch = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_positions"), sym("clip_patch")
    grid = sym("H") / (4 * sym("sam_patch"))
    tokens = grid**2 + 1
    positions = ClassAndPositions(n, grid, hidden, entries, b, resampled, always)
    unused = Conv2d(n, sym("in_channels"), hidden, patch, sym("H"), sym("H") / patch, b, bias=False)
    table = Embedding(entries if always else tokens, entries, hidden, b)
    layer = _clip_layer(structure).parts("clip.layer", StackCall(n, tokens, b))
    return (
        ModulePart("clip"),
        ModulePart("clip.embeddings", (positions, PositionIds(entries, persistent=structure.remote))),
        *((ModulePart("clip.patches", (unused,), called=False),) if structure.remote else ()),
        ModulePart("clip.positions", (table,), called=always or not resampled),
        ModulePart("clip.norm", (LayerNorm(n * tokens, hidden, b),)),
        ModulePart("clip.encoder"),
        *(part for i in range(structure.second_layers) for part in in_layer(i, layer)),
    )


def _clip_layer(structure: PageStructure) -> TransformerLayer:
    hidden, heads, fused = sym("clip_hidden"), sym("clip_heads"), structure.remote
    attention = AttentionBlock(
        width=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("clip_head_dim"),
        inner=hidden,
        bias=("q", "k", "v", "out"),
        fused=fused,
        cached=False,
        written_out=structure.attention == "eager",
    )
    mlp = Mlp(hidden, sym("clip_mlp"), "quick_gelu", activation_module=not fused)
    return TransformerLayer(hidden, attention, mlp, norm="layer")


def view_tapes(
    structure: PageStructure, view: View, config: OcrConfig, count: int, side: int, *, wide: bool
) -> dict[str, MemoryTape]:
    """Return the memory tapes of towers and projector on ``count`` views of ``side`` pixels, by stage.

    Args:
        wide: whether the dtype of the run is float32.

    Branches: products of one view, or of one head, copy nothing.
    """
    n, b, hidden, sam = sym("n"), sym("b"), sym("clip_hidden"), sym("sam_down2")
    grid = sym("H") / (4 * sym("sam_patch"))
    # The class token makes two tokens or more.
    branches = CopyBranches(count == 1, False, config.clip.heads == 1, shared=False, wide=wide)
    made = LayerTape(StackCall(n, grid**2 + 1, b), branches)
    table = sym("clip_positions") - 1 if view.clip_resampled else None
    x = made.placed(
        made.tape.give(n * grid**2 * hidden * b),
        hidden,
        grid,
        class_token=True,
        own_table=False,
        resampled=table,
        in_float32=True,
    )
    x = made.sequence((ModulePart("clip.norm", (LayerNorm(n * (grid**2 + 1), hidden, b),)),), x)
    made.tape.keep(made.layer(_clip_layer(structure), x) if config.clip.layers else x)
    projector = LayerTape(StackCall(n, grid**2, b), branches)
    rows, tape = n * grid**2 * b, projector.tape
    given = tape.give(rows * sam), tape.give((rows + n * b) * hidden)
    tape.keep(projector.sequence(_projector(structure)[1:], tape.make(rows * (hidden + sam), *given)))
    return {
        "sam": sam_tape(structure, view, config.sam, side, count, wide=wide), "clip": made.tape, "projector": tape,
    }  # fmt: skip


def glue_tape(structure: PageStructure, grid: tuple[int, int] | None, tokens: int) -> MemoryTape:
    """Return the memory tape of the operators that put image tokens into the prompt.

    Args:
        grid: columns and rows of the crops of a page, if there are any.
        tokens: of a crop along a side.

    Branches: crops in one column, or of one token, lie in order.
    """
    stride = 4 * sym("sam_patch")
    side = sym("H_g") / stride
    rows, parts = [structure.pages * side**2], [(side * (side + 1),)]
    if grid is not None:
        columns, lines, crop = sym("grid_w"), sym("grid_h"), sym("H_c") / stride
        features = columns * lines * crop**2
        rows.append(structure.pages * features)
        moved = (features,) if grid[0] > 1 and tokens > 1 else ()
        parts.append((*moved, lines * crop * (columns * crop + 1)))
    return page_glue_tape(structure.pages, tuple(rows), tuple(parts), masked=structure.splits_embedding)


def _tower_border(stage: str) -> Size:
    """Return the activation bytes that enter and leave a vision stage, on n views of H x H pixels.

    SAM makes (H / 4 sam_patch)² features of a view, CLIP takes them in place of patches and returns one token more; the
    projector takes what both made, the class token apart.
    """
    side = sym("H")
    features = (side / (4 * sym("sam_patch"))) ** 2
    pixels, sam = sym("in_channels") * side**2, features * sym("sam_down2")
    clip, projected = sym("clip_hidden"), features * sym("text_hidden")
    elements = {
        "sam": pixels + sam,
        "clip": sam + (features + 1) * clip,
        "projector": sam + features * clip + projected,
    }
    return sym("n") * elements[stage] * sym("b")


def _decoder_border(structure: PageStructure, call: StackCall, positions: Size) -> Size:
    """Return the activation bytes that enter and leave the decoder in one call, without the cache.

    Args:
        positions: number of positions per sequence that get logits.

    Branches: a step has no page; the vendor's code builds its own masks.
    """
    glue = _glue(structure, call)
    if isinstance(glue, PageInPlace):
        # Pixels, the features of both towers before and after their concatenation, and the projected features.
        joined = glue.features * (glue.clip + glue.sam)
        elements = call.batch * positions * sym("text_vocab") + glue.pixels + 2 * joined + glue.features * glue.hidden
        return elements * call.item_bytes
    return decoder_border(structure, call, positions, _image_border(structure) if structure.views else 0)


def _image_border(structure: PageStructure) -> Size:
    """Return the rows of width ``text_hidden`` that a page adds at the decoder's boundary.

    Branches: a page has crops if it has a second view.
    """
    stride = 4 * sym("sam_patch")
    grid = sym("H_g") / stride
    if len(structure.views) == 1:
        return grid**2 + vision_tokens(grid)
    columns, rows, crop = crops = sym("grid_w"), sym("grid_h"), sym("H_c") / stride
    return grid**2 + prod(crops) * crop + vision_tokens(grid, columns, rows, crop)


_OWN: Final[dict[str, tuple[str, str]]] = {
    "clip_hidden": ("h_{clip}", "width of the CLIP encoder"),
    "clip_heads": ("a_{clip}", "attention heads of the CLIP encoder"),
    "clip_head_dim": ("d_{clip}", "width of one head of the CLIP encoder"),
    "clip_mlp": ("m_{clip}", "inner width of the CLIP MLPs"),
    "clip_layers": (r"\ell_{clip}", "layers of the CLIP encoder"),
    "clip_positions": ("T_{clip}", "entries of CLIP's position table, class token included"),
    "clip_patch": ("p_{clip}", "side in pixels of a patch of the patch embedding that CLIP holds"),
}


SYMBOLS: Final = page_symbols(_OWN)
"""Typesetting and meaning of every symbol."""


@layer
class FeatureConcat:
    """Concatenates two feature vectors per token: ``tokens`` x (width_a + width_b) elements in and out, no FLOPs."""

    name: ClassVar[str] = "feature_concat"
    title: ClassVar[str] = "Joining of two features"
    source: ClassVar[str] = "Wei et al. 2025, DeepSeek-OCR, section 3.2; UnlimitedOcrVisionModel.forward"

    tokens: Size
    width_a: Size
    width_b: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        moved = self.tokens * (self.width_a + self.width_b) * self.item_bytes
        return LayerCosts(input_bytes=moved, output_bytes=moved, intermediate_bytes=0)


def vision_tokens(grid: Size, columns: Size = 0, rows: Size = 0, crop_grid: Size = 0) -> Size:
    """Return the number of image tokens per page.

    The global view gives grid rows of grid tokens with a newline token each, then one separator; a
    crop grid gives rows crop_grid rows of columns crop_grid tokens with a newline token each:
    grid (grid + 1) + 1 + rows crop_grid (columns crop_grid + 1).
    """
    return grid * (grid + 1) + 1 + rows * crop_grid * (columns * crop_grid + 1)


@layer
class ImageTokens:
    """Lays out the features of a page, adds newline and separator tokens, and writes them into the prompt.

    This only moves data: no FLOPs. Inputs are the global features (pages grid² hidden), the features of the crops
    (pages columns rows crop_grid² hidden), and the embedded prompts (prompt_rows hidden). Outputs are the prompts with
    the image tokens (prompt_rows hidden), and the image tokens (pages vision_tokens hidden, see
    :func:`vision_tokens`). The newline and the separator are 2 hidden parameters.

    Unfused, per page: the rows of each view are concatenated with newlines, then all views with the separator, then
    pages with each other, and the result is written into the prompt. That writes and reads all but the separator of the
    vision_tokens once, all of them once, and reads them once more: (5 vision_tokens - 2) hidden. The newline is read
    for every view, and it and the separator for every page.
    """

    name: ClassVar[str] = "image_tokens"
    title: ClassVar[str] = "Image tokens into the prompt"
    source: ClassVar[str] = "UnlimitedOcrModel.get_image_features and forward (transformers)"

    prompt_rows: Size
    """Number of tokens of all prompts."""
    hidden: Size
    item_bytes: Size
    pages: Size
    grid: Size
    """Number of tokens along one side of the global view; 0 for a prompt without an image, which needs no operator."""
    columns: Size = 0
    rows: Size = 0
    crop_grid: Size = 0

    def costs(self) -> LayerCosts:
        owned = 2 * self.hidden
        if self.grid == 0:
            return LayerCosts(params=owned, weight_bytes=owned * self.item_bytes, intermediate_bytes=0)
        features = self.grid**2 + self.columns * self.rows * self.crop_grid**2
        tokens = vision_tokens(self.grid, self.columns, self.rows, self.crop_grid)
        scale = self.hidden * self.item_bytes
        read = 3 if self.crop_grid != 0 else 2  # rows of parameters for a page
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes,
            input_bytes=scale * (self.pages * features + self.prompt_rows),
            output_bytes=scale * (self.prompt_rows + self.pages * tokens),
            intermediate_bytes=scale * self.pages * (5 * tokens - 2 + read) - owned * self.item_bytes,
        )


@layer
class PageInPlace:
    """Work of the vendor's outer module: concatenate features, write image tokens into the prompt, build the mask.

    1. Two branches check whether views are empty by summing their ``pixels``: one addition per element.
    2. The features of both towers, clip and sam wide, are concatenated for each of ``features`` tokens and
       passed to the projector, which returns ``hidden`` wide results.
    3. Newline and separator (2 hidden parameters) are inserted, and everything is written into the embedded
       prompt in place: the prompt is an input and an output, prompt x hidden.
    4. A prompt of more than one token gets a mask [prompt, prompt], which has no inputs.

        vector_flops = pixels

    The rest only moves data. Unfused, image tokens are concatenated as in :class:`ImageTokens`, then with those of
    other pages (none), and written over the prompt: (6 tokens - 2) hidden. The newline is read for every view. The
    mask is built in float32, which is written and read: 8 prompt² bytes.
    """

    name: ClassVar[str] = "page_in_place"
    title: ClassVar[str] = "Image tokens into the prompt, in place"
    source: ClassVar[str] = "DeepseekOCRModel.forward of the vendor; transformers 4.46 AttentionMaskConverter"

    prompt: Size
    hidden: Size
    item_bytes: Size
    pixels: Size = 0
    """Number of elements of the views, which are summed to check whether views are empty."""
    features: Size = 0
    """Number of tokens of all views without newlines; 0 if nothing is written into the prompt."""
    clip: Size = 0
    sam: Size = 0
    tokens: Size = 0
    """Number of tokens of all views with newlines and separator (:func:`vision_tokens`)."""
    views: int = 0
    """Number of views that are concatenated with newline tokens."""
    masked: bool = True

    def costs(self) -> LayerCosts:
        owned = 2 * self.hidden
        joined = self.features * (self.clip + self.sam)
        written = self.prompt * self.hidden if self.features != 0 else 0
        mask = self.prompt**2 if self.masked else 0
        placed = 6 * self.tokens - 2 + self.views - 1 if self.features != 0 else 0
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes if self.features != 0 else 0,
            vector_flops={"reduction": self.pixels},
            input_bytes=(self.pixels + joined + self.features * self.hidden + written) * self.item_bytes,
            output_bytes=(joined + written + mask) * self.item_bytes,
            intermediate_bytes=placed * self.hidden * self.item_bytes + 8 * mask,
        )
