"""What passes between the stages of DeepSeek-OCR: pixels, features of the towers, image tokens, masks, logits."""

from __future__ import annotations

from math import prod

from costproof.algebra.symbols import sym
from costproof.analytic.compose import StackCall
from costproof.analytic.costs import Size
from costproof.models.families.deepseek_ocr.formulas import page
from costproof.models.families.deepseek_ocr.formulas.image_tokens import PageInPlace, vision_tokens
from costproof.models.families.deepseek_ocr.formulas.structure import Structure


def tower(stage: str) -> Size:
    """Bytes that a vision stage gets and returns, on n views of H x H pixels.

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


def decoder(structure: Structure, call: StackCall, positions: Size) -> Size:
    """Bytes that one call of the decoder gets and returns beside the cache.

    Args:
        positions: positions per sequence that get logits.

    Branches: a step has no page; the vendor's code makes its masks itself.
    """
    glue = page.glue(structure, call.tokens)
    elements = call.batch * positions * sym("text_vocab")
    if isinstance(glue, PageInPlace):
        # The pixels come, the features of both towers, which are joined for the projector, and what that makes of them.
        joined = glue.features * (glue.clip + glue.sam)
        return (elements + glue.pixels + 2 * joined + glue.features * glue.hidden) * call.item_bytes
    if structure.attention == "eager":
        elements += call.batch * call.tokens * (call.past + call.tokens)
    if call.past == 0 and structure.views:
        elements += call.batch * _image(structure) * sym("text_hidden")
    return elements * call.item_bytes


def _image(structure: Structure) -> Size:
    """Tokens of a page as they come projected and as they are returned, with newlines and separator.

    Branches: a page has crops if it has a second view.
    """
    stride = 4 * sym("sam_patch")
    grid = sym("H_g") / stride
    if len(structure.views) == 1:
        return grid**2 + vision_tokens(grid)
    columns, rows, crop = crops = sym("grid_w"), sym("grid_h"), sym("H_c") / stride
    return grid**2 + prod(crops) * crop + vision_tokens(grid, columns, rows, crop)
