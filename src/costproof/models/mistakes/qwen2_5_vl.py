"""Mistakes that models of Qwen2.5-VL's vision tower make, beside those that are made with every model."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from costproof.algebra.identity import free_symbols
from costproof.claims.effects import FLOPS, NOT_STAGE_WIDE, Mistake, Mistakes, TermChange, left_out, substituted
from costproof.claims.terms import ClaimTerm

_VOLUME: Final = 3 * 2
"""Channels times frames of a patch."""


def _merger(term: ClaimTerm) -> bool:
    return term.role.startswith("vision.merger")


def _windowed(term: ClaimTerm) -> bool:
    return term.expr != "" and "vision_window" in free_symbols(term.expr)


def _of_pixels(term: ClaimTerm) -> Fraction | None:
    """Return attention of each patch to as many patches as a window has pixels, relative to its real cost."""
    v = term.values
    if not term.scores:
        return None
    tokens, side = (v["U"] * v["vision_merge"]) ** 2, v["vision_window"] * v["vision_merge"]
    keys = side**2 * Fraction(v["vision_volume"], _VOLUME)
    return 4 * v["n"] * v["vision_heads"] * v["vision_head_dim"] * tokens * keys * term.count / term.value


TABLE: Final = (
    Mistake("merger missing", "merger", "the merger is left out", (left_out(_merger),)),
    Mistake("merger on patches", "merger",
            "the merger works on every patch, not on the tokens that it makes of several",
            (TermChange(lambda t: _merger(t) and t.owner == "linear",
                        lambda t: Fraction(t.values["vision_merge"]) ** 2),),
            metrics=NOT_STAGE_WIDE),
    Mistake("patch convolution missing", "patch", "the patch embedding is left out",
            (left_out(lambda t: t.owner == "volume_patches"),), metrics=NOT_STAGE_WIDE),
    Mistake("windows as full attention", "window", "window layers attend to the whole image",
            (substituted(_windowed, vision_window="U"),), metrics=NOT_STAGE_WIDE),
    Mistake("window of pixels as of patches", "window",
            "the side of a window, which is in pixels, is taken to be in patches", (TermChange(_windowed, _of_pixels),),
            metrics=FLOPS),
)  # fmt: skip

MISTAKES: Final = Mistakes(TABLE)
