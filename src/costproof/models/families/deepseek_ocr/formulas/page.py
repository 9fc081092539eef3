"""Between towers and decoder: the projector, and what puts a page into the prompt."""

from __future__ import annotations

from typing import Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart
from costproof.analytic.costs import Layer, Size
from costproof.analytic.linear import Linear
from costproof.models.families.deepseek_ocr.formulas.image_tokens import (
    FeatureConcat,
    ImageTokens,
    PageInPlace,
    vision_tokens,
)
from costproof.models.families.deepseek_ocr.formulas.structure import Structure

EMPTY_SIDE: Final = 64
"""Side of the empty views that the vendor's code wants in a run without a page, since it looks at them first."""


def projector(structure: Structure) -> tuple[ModulePart, ...]:
    """The joining of both towers' features where a module does it, and the projection, on (H / 4 sam_patch)² tokens.

    Source: Wei et al. 2025, DeepSeek-OCR, section 3.2; ``UnlimitedOcrVisionModel`` (transformers),
    ``MlpProjector`` (vendor).
    """
    b, clip, sam = sym("b"), sym("clip_hidden"), sym("sam_down2")
    tokens = sym("n") * (sym("H") / (4 * sym("sam_patch"))) ** 2
    linear = Linear(tokens, clip + sam, sym("text_hidden"), b)
    if structure.remote:
        return ModulePart("projector"), ModulePart("projector.linear", (linear,))
    return ModulePart("vision", (FeatureConcat(tokens, clip, sam, b),)), ModulePart("projector", (linear,))


def glue(structure: Structure, prompt: Size) -> Layer:
    """What the module around the decoder does itself.

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
        # The global view is empty, so the code asks no further.
        return PageInPlace(prompt, hidden, b, channels * EMPTY_SIDE**2)
    whole, grid = channels * sym("H_g") ** 2, sym("H_g") / stride
    features, tokens = grid**2, vision_tokens(grid)
    pixels = 2 * whole  # without crops a page of zeros stands for them
    if crops:
        count = sym("grid_w") * sym("grid_h")
        pixels = whole + count * channels * sym("H_c") ** 2
        features += count * (sym("H_c") / stride) ** 2
        tokens = vision_tokens(grid, sym("grid_w"), sym("grid_h"), sym("H_c") / stride)
    towers = (sym("clip_hidden"), sym("sam_down2"))
    return PageInPlace(prompt, hidden, b, pixels, features, *towers, tokens, len(structure.views))
