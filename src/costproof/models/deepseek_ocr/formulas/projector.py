"""From the features of both towers to the decoder's width."""

from __future__ import annotations

from costproof.analytic.compose import Part
from costproof.analytic.linear import Linear
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas.image_tokens import FeatureConcat


def parts() -> tuple[Part, ...]:
    """The vision tower's own joining of features, and the projection, on n views of (H / 4 sam_patch)² tokens.

    Source: Wei et al. 2025, DeepSeek-OCR, section 3.2; ``UnlimitedOcrVisionModel`` (transformers).
    """
    b, clip, sam = sym("b"), sym("clip_hidden"), sym("sam_down2")
    tokens = sym("n") * (sym("H") / (4 * sym("sam_patch"))) ** 2
    return (
        Part("vision", (FeatureConcat(tokens, clip, sam, b),)),
        Part("projector", (Linear(tokens, clip + sam, sym("text_hidden"), b),)),
    )
