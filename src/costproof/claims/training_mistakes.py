"""Passes of training that are counted in place of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from costproof.claims.effects import ClaimTerms, Effect, times
from costproof.claims.terms import RULES

RECOMPUTE: Final = "full recompute"
RECOMPUTED: Final = Fraction(4)
"""Forward passes of training that computes every activation twice."""
_RECOMPUTE: Final = "four forward passes: training computes every activation twice"
_WHOLE: Final = (
    ("6ND", "three forward passes: forward and backward of training", 3),
    ("backward alone", "two forward passes: the backward pass of training", 2),
)
_OF_ATTENTION: Final = (
    (
        "6ND, fused attention",
        "three forward passes, three and a half of attention: its fused backward has five products for two",
        Fraction(3),
        Fraction(7, 2),
    ),
    (
        "full recompute, fused attention",
        "four forward passes, four and a half of attention: its fused backward has five products for two",
        RECOMPUTED,
        Fraction(9, 2),
    ),
    (
        "attention recomputed",
        "three forward passes, four of attention: training computes its scores twice",
        Fraction(3),
        Fraction(4),
    ),
)
"""Cause, what it is, passes of everything, passes of scores and weighted sums."""
_CAUSAL: Final = ("causal triangle", "causal half", "causal 1.8")
_UNITS: Final = ("mac", "doubled", "fvcore")
"""Beside these too many numbers would be reached: passes are counted in FLOP."""
_RULES: Final = tuple(f"2ND: {name}" for name, _ in RULES)


def effects(terms: ClaimTerms) -> Iterator[Effect]:
    """All of them; four times everything is a ratio like others, so recomputing is a cause beside another one."""
    for cause, what, passes in _WHOLE:
        yield Effect(cause, "training", what, times(terms, lambda i: True, passes))
    four = times(terms, lambda i: True, RECOMPUTED)
    for other in (*_CAUSAL, *_RULES):
        yield Effect(RECOMPUTE, "training", _RECOMPUTE, four, requires=other, excludes=_UNITS)
    for other in ("window S x W", "window band"):
        yield Effect(RECOMPUTE, "training", _RECOMPUTE, four, requires=other, excludes=(*_CAUSAL, *_UNITS))
    if not any(i.counted and i.scores for i in terms):
        return
    for cause, what, every, scores in _OF_ATTENTION:
        factors = times(terms, lambda i: True, every) | times(terms, lambda i: i.scores, scores)
        # Beside these no pass of attention is counted, so that they are the same as without.
        yield Effect(cause, "training", what, factors, excludes=("attention missing", *_RULES, *_UNITS))
