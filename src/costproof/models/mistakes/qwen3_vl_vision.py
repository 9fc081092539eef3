"""Mistakes that models of Qwen3-VL's vision tower make, beside those that are made with every model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from costproof.claims.effects import ClaimTerms, Effect, Mistakes, scaled, without
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import STAGE_WIDE, Metric


def _effects(terms: ClaimTerms, metric: Metric, everywhere: Mapping[str, int]) -> Iterator[Effect]:
    def merger(i: ClaimTerm) -> bool:
        return i.role.startswith(("vision.merger", "vision.deep_merger"))

    yield without(terms, "mergers missing", "merger", "the mergers are left out", merger)
    if metric in STAGE_WIDE:
        return
    what = "the mergers work on every patch, not on the tokens that they make of several"
    after = scaled(terms, lambda i: merger(i) and i.owner == "linear", lambda i: Fraction(i.values["vision_merged"]))
    yield Effect("mergers on patches", "merger", what, after)
    what = "the patch embedding is left out"
    yield without(terms, "patch convolution missing", "patch", what, lambda i: i.owner == "volume_patches")


MISTAKES: Final = Mistakes(_effects)
