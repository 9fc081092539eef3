"""Layers that attend to the last W tokens, counted or cached in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Final

from costproof.claims.effects import ClaimTerms, Effect, scaled, switched
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import Metric

_ONE: Final = "one decode step"
_TRIANGLE: Final = "causal triangle"
_HALVES: Final = ("causal half", "causal 1.8")
_LAYER: Final = ("one layer",)
"""Beside it nothing says which kind of layer that is."""
_BLOCKS: Final = (16, 32, 64, 128)
"""Tokens in a block of a cache, as engines have them."""


def effects(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    """All of them, whether they change this claim or not."""
    if metric == "flops":
        yield from _scores(terms)
        yield from _steps(terms)
    if metric in ("kv_cache_bytes", "kv_read_bytes"):
        yield from _cache(terms, metric)
    if metric == "kv_cache_bytes":
        yield from _blocks(terms)


def _scores(terms: ClaimTerms) -> Iterator[Effect]:
    """The scores of a prompt; the truth computes all S x S of them."""

    def windows(form: Callable[[int, int], Fraction]) -> dict[int, Fraction]:
        return scaled(
            terms,
            lambda i: i.counted and i.window > 0 and i.owner == "attention" and i.window < i.values.get("S", 0),
            lambda i: form(i.values["S"], i.window),
        )

    name, what = "window S x W", "of the scores of layers with a window S x W are counted"
    # Beside a half of all scores it is a half of S x W; beside an exact triangle S x W itself.
    yield Effect(name, "window", what, windows(lambda s, w: Fraction(w, s)), excludes=(_TRIANGLE,))
    yield Effect(name, "window", what, windows(lambda s, w: Fraction(2 * w, s + 1)), requires=_TRIANGLE)
    name, what = "window band", "of the scores of layers with a window its exact causal band is counted"
    yield Effect(
        name, "window", what, windows(lambda s, w: Fraction(band(s, w), s * s)), excludes=(_TRIANGLE, *_HALVES)
    )
    for cause, part in (
        (_TRIANGLE, lambda s: Fraction(s + 1, 2 * s)),
        ("causal half", lambda s: Fraction(1, 2)),
        ("causal 1.8", lambda s: Fraction(5, 9)),
    ):
        beside = windows(lambda s, w, part=part: Fraction(band(s, w), s * s) / part(s))  # type: ignore[misc]
        yield Effect(name, "window", what, beside, requires=cause)
    name, what = "window S x W, not halved", "layers with a window have S x W scores, and those without one a half"
    yield Effect(name, "window", what, windows(lambda s, w: Fraction(2 * w, s)), requires="causal half")


def band(tokens: int, window: int) -> int:
    """Count the pairs of a token and one of the last W that it attends to, itself among them."""
    return tokens * window - window * (window - 1) // 2


def _steps(terms: ClaimTerms) -> Iterator[Effect]:
    """Decode steps, of which the truth counts what the window leaves."""
    what = "layers with a window attend to the whole context"
    name = "windows as full attention"

    def whole(i: ClaimTerm) -> Fraction:
        return Fraction(_seen(i, None), _seen(i, i.window))

    def single(i: ClaimTerm) -> Fraction:
        return Fraction(i.values["P"] + 1, min(i.values["P"] + 1, i.window))

    yield Effect(name, "window", what, scaled(terms, _stepping, whole), excludes=(_ONE,))
    yield Effect(name, "window", what, scaled(terms, _stepping, single), requires=_ONE)


def _stepping(term: ClaimTerm) -> bool:
    return term.counted and term.window > 0 and term.owner == "attention" and {"N", "P"} <= term.values.keys()


def _seen(term: ClaimTerm, most: int | None, own: int = 1) -> int:
    """Keys that N steps attend to, at most so many each.

    Args:
        own: 1 if a step attends to its own token, 0 for those in the cache alone.
    """
    first, steps = term.values["P"] + own, term.values["N"]
    growing = steps if most is None else max(0, min(steps, most - first))
    return growing * first + growing * (growing - 1) // 2 + (steps - growing) * (most or 0)


def _cache(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    def kept(i: ClaimTerm) -> bool:
        return i.counted and i.window > 0

    def in_full(i: ClaimTerm) -> Fraction | None:
        if metric == "kv_read_bytes":
            held = _seen(i, i.window - 1, 0)
            return Fraction(_seen(i, None, 0), held) if held else None
        return Fraction(i.values["S"], min(i.values["S"], i.window - 1)) if "S" in i.values else None

    def wider(i: ClaimTerm) -> Fraction | None:
        return Fraction(i.window, i.window - 1) if i.values.get("S", i.values.get("P", 0)) >= i.window else None

    what = "layers with a window keep the keys and values of all tokens"
    rest = switched(terms, "beyond the window")
    yield Effect("windows cached in full", "window", what, scaled(terms, kept, in_full), rest, excludes=_LAYER)
    what = "layers with a window keep as many tokens as it is wide; a step makes the last of them itself"
    yield Effect("window cached with its own token", "window", what, scaled(terms, kept, wider), excludes=_LAYER)
    what = "layers with a window have no cache"
    left_out = {i: Fraction(0) for i, term in enumerate(terms) if kept(term)}
    yield Effect("cache of windows missing", "window", what, left_out, excludes=_LAYER)


def _blocks(terms: ClaimTerms) -> Iterator[Effect]:
    """Engines give a sequence its cache in blocks."""

    def held(tokens: int, size: int) -> int:
        return -(-tokens // size) * size

    for size in _BLOCKS:

        def factor(i: ClaimTerm, size: int = size) -> Fraction | None:
            v = i.values
            if "S" in v:
                tokens = min(v["S"], i.window - 1) if i.window else v["S"]
                return Fraction(held(tokens, size), tokens)
            if {"N", "P"} <= v.keys() and not i.window:
                return Fraction(held(v["P"] + v["N"], size) - held(v["P"], size), v["N"])
            return None

        what = f"every sequence has its cache in blocks of {size} tokens, the last one in part empty"
        yield Effect(f"blocks of {size} tokens", "blocks", what, scaled(terms, lambda i: i.counted, factor))
