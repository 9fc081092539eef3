"""Closed formulas of DeepSeek-OCR: CLIP on the features of SAM, the projector, the page in the prompt, all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Final

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import (
    ModulePart,
    StackCall,
    analytic_ledger,
    in_layer,
    invocation_nodes,
    prefill_and_decode,
    stage_nodes,
)
from costproof.analytic.conv2d import Conv2d
from costproof.analytic.costs import Layer, Size
from costproof.analytic.embedding import ClassAndPositions, Embedding, PositionIds
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.linear import Linear
from costproof.analytic.norms import LayerNorm
from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.node import CostNode, Ledger
from costproof.models.families.deepseek_ocr.image_tokens import FeatureConcat, ImageTokens, PageInPlace, vision_tokens
from costproof.models.families.deepseek_ocr.names import NATIVE_NAMES
from costproof.models.families.deepseek_ocr.workload import STAGES
from costproof.models.pages.formulas import PageStructure, View, page_decoder_parts, sam_parts


def ocr_ledger(structure: PageStructure, names: Mapping[str, str] = NATIVE_NAMES) -> Ledger:
    """Return the symbolic ledger of all stages: ``exprs`` are set, ``costs`` are empty.

    Decode nodes hold the sum over N steps at contexts P, P+1, ..., P+N-1.

    Args:
        names: role -> module path, see :mod:`costproof.models.families.deepseek_ocr.names`.
    """
    return analytic_ledger(_nodes(structure, names), STAGES)


def _nodes(structure: PageStructure, names: Mapping[str, str]) -> Iterator[CostNode]:
    for stage, parts in _TOWERS.items():
        border = _tower_border(stage)
        yield from stage_nodes(stage, parts(structure, _ANY_VIEW), names)
        for view in structure.views:
            yield from invocation_nodes(stage, view.invocation, parts(structure, view), names, border=border)

    def border_of(call: StackCall) -> Size:
        return _decoder_border(structure, call, _positions(structure, call))

    yield from prefill_and_decode(partial(_decoder_parts, structure), names, border=border_of, decode=structure.decode)


def _decoder_parts(structure: PageStructure, call: StackCall) -> tuple[ModulePart, ...]:
    """Return the parts of one call: image tokens into the prompt, if any, then the decoder."""
    return page_decoder_parts(structure, call, _positions(structure, call), _glue(structure, call.tokens))


def _positions(structure: PageStructure, call: StackCall) -> Size:
    """Return the number of positions per sequence that get logits."""
    return 1 if structure.logits == "last" and not structure.remote else call.tokens


EMPTY_SIDE: Final = 64
"""Side, in pixels, of the empty views that the vendor's code requires in a run without a page."""


def _projector(structure: PageStructure) -> tuple[ModulePart, ...]:
    """Return the concatenation of the features of both towers and the projector, on (H / 4 sam_patch)² tokens.

    Source: Wei et al. 2025, DeepSeek-OCR, section 3.2; ``UnlimitedOcrVisionModel`` (transformers),
    ``MlpProjector`` (vendor).
    """
    b, clip, sam = sym("b"), sym("clip_hidden"), sym("sam_down2")
    tokens = sym("n") * (sym("H") / (4 * sym("sam_patch"))) ** 2
    linear = Linear(tokens, clip + sam, sym("text_hidden"), b)
    if structure.remote:
        return ModulePart("projector"), ModulePart("projector.linear", (linear,))
    return ModulePart("vision", (FeatureConcat(tokens, clip, sam, b),)), ModulePart("projector", (linear,))


def _glue(structure: PageStructure, prompt: Size) -> Layer:
    """Return the layer of the module that contains towers and decoder.

    Branches: ``prompt`` = 1 is a decode step, which has no page; a page has crops if it has a second view.
    """
    hidden, b, stride = sym("text_hidden"), sym("b"), 4 * sym("sam_patch")
    page, crops = prompt != 1 and len(structure.views) > 0, prompt != 1 and len(structure.views) > 1
    if not structure.remote:
        return ImageTokens(
            batch=sym("B"),
            prompt=prompt,
            hidden=hidden,
            item_bytes=b,
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
        ModulePart("clip.embeddings", (positions, PositionIds(entries))),
        *((ModulePart("clip.patches", (unused,), called=False),) if structure.remote else ()),
        ModulePart("clip.positions", (table,), called=always or not resampled),
        ModulePart("clip.norm", (LayerNorm(n * tokens, hidden, b),)),
        ModulePart("clip.encoder"),
        *(part for i in range(structure.clip_layers) for part in in_layer(i, layer)),
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
    glue = _glue(structure, call.tokens)
    elements = call.batch * positions * sym("text_vocab")
    if isinstance(glue, PageInPlace):
        # Pixels, the features of both towers before and after their concatenation, and the projected features.
        joined = glue.features * (glue.clip + glue.sam)
        return (elements + glue.pixels + 2 * joined + glue.features * glue.hidden) * call.item_bytes
    if structure.attention == "eager":
        elements += call.batch * call.tokens * (call.past + call.tokens)
    if call.past == 0 and structure.views:
        elements += call.batch * _image_border(structure) * sym("text_hidden")
    return elements * call.item_bytes


def _image_border(structure: PageStructure) -> Size:
    """Return the projected tokens that enter plus the tokens with newlines and separator that are returned.

    Branches: a page has crops if it has a second view.
    """
    stride = 4 * sym("sam_patch")
    grid = sym("H_g") / stride
    if len(structure.views) == 1:
        return grid**2 + vision_tokens(grid)
    columns, rows, crop = crops = sym("grid_w"), sym("grid_h"), sym("H_c") / stride
    return grid**2 + prod(crops) * crop + vision_tokens(grid, columns, rows, crop)


_TOWERS: Final[dict[str, Callable[[PageStructure, View], tuple[ModulePart, ...]]]] = {
    "sam": sam_parts,
    "clip": _clip_parts,
    "projector": lambda structure, _: _projector(structure),
}

_ANY_VIEW: Final = View("", sam_resampled=False, clip_resampled=False)
"""Stands in for any view, because parameters do not depend on the view."""


_OWN: Final[dict[str, tuple[str, str]]] = {
    "n": ("n", "views in the invocation: one per page, or all crops"),
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
    "clip_hidden": ("h_{clip}", "width of the CLIP encoder"),
    "clip_heads": ("a_{clip}", "attention heads of the CLIP encoder"),
    "clip_head_dim": ("d_{clip}", "width of one head of the CLIP encoder"),
    "clip_mlp": ("m_{clip}", "inner width of the CLIP MLPs"),
    "clip_layers": (r"\ell_{clip}", "layers of the CLIP encoder"),
    "clip_positions": ("T_{clip}", "entries of CLIP's position table, class token included"),
    "clip_patch": ("p_{clip}", "side in pixels of a patch of the patch embedding that CLIP holds"),
}


def symbol_docs() -> dict[str, SymbolDoc]:
    """Return the typesetting and the meaning of every symbol."""
    return {**RUN_SYMBOLS, **DECODER_SYMBOLS, **{name: SymbolDoc(*doc) for name, doc in _OWN.items()}}
