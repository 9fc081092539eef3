"""Known mistakes in cost models of Qwen2.5-VL's and Qwen3-VL's vision towers, besides the general ones."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from costproof.algebra.identity import free_symbols
from costproof.claims.effects import FLOPS, NOT_STAGE_WIDE, Mistake, Mistakes, TermChange, left_out, substituted
from costproof.claims.terms import ClaimTerm

_VOLUME: Final = 3 * 2
"""Channels times frames of a patch."""
_NO_PATCHES: Final = Mistake(
    "patch convolution missing", "patch", "the patch embedding is left out",
    (left_out(lambda t: t.owner == "volume_patches"),), metrics=NOT_STAGE_WIDE,
)  # fmt: skip


def _merger(term: ClaimTerm) -> bool:
    return term.role.startswith(("vision.merger", "vision.deep_merger"))


def _on_patches(merged: Callable[[ClaimTerm], Fraction]) -> TermChange:
    """Return the mistake that the patch merger runs on every patch; ``merged`` gives the patches per token."""
    return TermChange(lambda t: _merger(t) and t.owner == "linear", merged)


def _windowed(term: ClaimTerm) -> bool:
    return term.expr != "" and "vision_window" in free_symbols(term.expr)


def _of_pixels(term: ClaimTerm) -> Fraction | None:
    """Return wrong over right FLOPs of attention, where a window's side in pixels is taken for its side in patches.

    ``None`` for a term that is not attention.
    """
    v = term.values
    if not term.scores:
        return None
    tokens, side = (v["U"] * v["vision_merge"]) ** 2, v["vision_window"] * v["vision_merge"]
    keys = side**2 * Fraction(v["vision_volume"], _VOLUME)
    return 4 * v["n"] * v["vision_heads"] * v["vision_head_dim"] * tokens * keys * term.count / term.value


QWEN2_5_VL: Final = Mistakes((
    Mistake("merger missing", "merger", "the merger is left out", (left_out(_merger),)),
    Mistake("merger on patches", "merger",
            "the merger works on every patch, not on the tokens that it makes of several",
            (_on_patches(lambda t: Fraction(t.values["vision_merge"]) ** 2),), metrics=NOT_STAGE_WIDE),
    _NO_PATCHES,
    Mistake("windows as full attention", "window", "window layers attend to the whole image",
            (substituted(_windowed, vision_window="U"),), metrics=NOT_STAGE_WIDE),
    Mistake("window of pixels as of patches", "window",
            "the side of a window, which is in pixels, is taken to be in patches", (TermChange(_windowed, _of_pixels),),
            metrics=FLOPS),
))  # fmt: skip

QWEN3_VL_VISION: Final = Mistakes((
    Mistake("mergers missing", "merger", "the mergers are left out", (left_out(_merger),)),
    Mistake("mergers on patches", "merger",
            "the mergers work on every patch, not on the tokens that they make of several",
            (_on_patches(lambda t: Fraction(t.values["vision_merged"])),), metrics=NOT_STAGE_WIDE),
    _NO_PATCHES,
))  # fmt: skip
