"""Mistakes that models of Qwen3-VL's vision tower make, beside those that are made with every model."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from costproof.claims.effects import NOT_STAGE_WIDE, Mistake, Mistakes, TermChange, left_out
from costproof.claims.terms import ClaimTerm


def _merger(term: ClaimTerm) -> bool:
    return term.role.startswith(("vision.merger", "vision.deep_merger"))


TABLE: Final = (
    Mistake("mergers missing", "merger", "the mergers are left out", (left_out(_merger),)),
    Mistake("mergers on patches", "merger",
            "the mergers work on every patch, not on the tokens that they make of several",
            (TermChange(lambda t: _merger(t) and t.owner == "linear", lambda t: Fraction(t.values["vision_merged"])),),
            metrics=NOT_STAGE_WIDE),
    Mistake("patch convolution missing", "patch", "the patch embedding is left out",
            (left_out(lambda t: t.owner == "volume_patches"),), metrics=NOT_STAGE_WIDE),
)  # fmt: skip

MISTAKES: Final = Mistakes(TABLE)
