"""Mistakes that models of Qwen2.5-VL's vision tower make, beside those that are made with every model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from costproof.algebra.identity import free_symbols
from costproof.claims.effects import ClaimTerms, Effect, Mistakes, changed, scaled, without
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import STAGE_WIDE, Metric

_VOLUME: Final = 3 * 2
"""Channels, and frames, of a patch."""


def _effects(terms: ClaimTerms, metric: Metric, everywhere: Mapping[str, int]) -> Iterator[Effect]:
    def merger(i: ClaimTerm) -> bool:
        return i.role.startswith("vision.merger")

    yield without(terms, "merger missing", "merger", "the merger is left out", merger)
    if metric in STAGE_WIDE:
        return
    what = "the merger works on every patch, not on the tokens that it makes of several"
    merged = scaled(
        terms, lambda i: merger(i) and i.owner == "linear", lambda i: Fraction(i.values["vision_merge"]) ** 2
    )
    yield Effect("merger on patches", "merger", what, merged)
    what = "the patch embedding is left out"
    yield without(terms, "patch convolution missing", "patch", what, lambda i: i.owner == "volume_patches")

    def windowed(i: ClaimTerm) -> bool:
        return i.expr != "" and "vision_window" in free_symbols(i.expr)

    what = "window layers attend to the whole image"
    yield changed(terms, "windows as full attention", "window", what, windowed, vision_window="U")
    if metric == "flops":
        what = "the side of a window, which is in pixels, is taken to be in patches"
        yield Effect("window of pixels as of patches", "window", what, scaled(terms, windowed, _of_pixels))


def _of_pixels(term: ClaimTerm) -> Fraction | None:
    """Return attention of each patch to as many patches as a window has pixels, relative to its real cost."""
    v = term.values
    if not term.scores:
        return None
    tokens, side = (v["U"] * v["vision_merge"]) ** 2, v["vision_window"] * v["vision_merge"]
    keys = side**2 * Fraction(v["vision_volume"], _VOLUME)
    return 4 * v["n"] * v["vision_heads"] * v["vision_head_dim"] * tokens * keys * term.count / term.value


MISTAKES: Final = Mistakes(_effects)
