"""Mistakes that models of DeepSeek-OCR make with its vision towers and with what joins them to the decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

import sympy

from costproof.algebra.identity import free_symbols
from costproof.claims.effects import ClaimTerms, Effect, Mistakes, changed, rewritten, scaled, times, without
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import STAGE_WIDE, Metric

_STRIDE = 2
_MERGED = _STRIDE**4
"""Patches that two convolutions of stride 2 make one feature."""


def _effects(terms: ClaimTerms, metric: Metric, everywhere: Mapping[str, int]) -> Iterator[Effect]:
    if metric in STAGE_WIDE:
        name, what = "newline and separator missing", "the tokens between image features are left out"
        yield without(terms, name, name, what, lambda i: i.owner == "image_tokens")
        return

    def windowed(i: ClaimTerm) -> bool:
        return i.expr != "" and "sam_window" in free_symbols(i.expr)

    what = "window layers attend to the whole view"
    yield changed(terms, "windows as full attention", "window", what, windowed, window="H / patch")
    bare = scaled(terms, windowed, lambda i: rewritten(i, _without_padding))
    yield Effect("window padding missing", "window", "windows are not padded", bare)
    floored = scaled(terms, windowed, lambda i: rewritten(i, _floored))
    yield Effect("partial windows missing", "window", "windows that the view does not fill are left out", floored)
    partly = scaled(terms, windowed, lambda i: rewritten(i, _padded_once))
    yield Effect("windows padded one way", "window", "windows are padded along one side alone", partly)
    for cause, family, what, owner in (
        ("relative positions missing", "relative", "relative position terms are left out", "relative_position"),
        ("patch convolution missing", "patch", "the patch embedding is left out", "patch_embedding"),
        ("convolutions missing", "neck", "neck and downsampling convolutions are left out", "conv2d"),
    ):
        yield without(terms, cause, family, what, lambda i, owner=owner: i.owner == owner and i.products)  # type: ignore[misc]
    merged = times(terms, lambda i: i.role == "sam.downsample.conv1", _STRIDE**2)
    merged |= times(terms, lambda i: i.role == "sam.downsample.conv2", _MERGED)
    what = "the convolutions that merge patches give one result for every patch"
    yield Effect("merger on patches", "neck", what, merged)
    classless = scaled(terms, lambda i: i.tower == "clip", lambda i: rewritten(i, _without_class))
    yield Effect("class token missing", "class", "the class token is forgotten", classless)
    if metric == "flops":
        yield from _projector(terms, everywhere)
    what = "one crop is counted in place of all"
    yield changed(terms, "one crop", "view crops", what, lambda i: i.invocation == "crops", n="B")
    side = max((i.values["H"] for i in terms if i.invocation == "global"), default=None)
    if side is not None:
        what = "crops are taken to be as large as the global view"
        cause = "crops as large as the view"
        yield changed(terms, cause, "view crops", what, lambda i: i.invocation == "crops", H=str(side))


def _without_padding(expr: sympy.Expr) -> sympy.Expr:
    return expr.replace(sympy.ceiling, lambda inside: inside)


def _floored(expr: sympy.Expr) -> sympy.Expr:
    return expr.replace(sympy.ceiling, sympy.floor)


def _padded_once(expr: sympy.Expr) -> sympy.Expr:
    """Replace one of the two equal window counts of a view by the count without padding."""
    return expr.replace(
        lambda e: e.is_Pow and isinstance(e.base, sympy.ceiling) and e.exp == 2,
        lambda e: e.base * e.base.args[0],
    )


def _without_class(expr: sympy.Expr) -> sympy.Expr:
    """Subtract one token wherever tokens are counted as features + 1."""
    tokens = [
        a for a in expr.atoms(sympy.Add)
        if a.has(sympy.Symbol("H", integer=True, positive=True)) and a.as_coeff_Add()[0] == 1
    ]  # fmt: skip
    return expr.xreplace({a: a - 1 for a in tokens})


def _projector(terms: ClaimTerms, everywhere: Mapping[str, int]) -> Iterator[Effect]:
    def projection(i: ClaimTerm) -> bool:
        return i.role == "projector" and i.owner == "linear"

    what = "the projector works on the patches before they are merged"
    yield Effect("projector on patches", "projector", what, times(terms, projection, _MERGED))
    beside = scaled(terms, projection, lambda i: 1 + 1 / _features(i))
    yield Effect("projector with class token", "projector", "the projector works on a class token too", beside)
    counted = sum(i.values["n"] * _features(i) for i in terms if i.counted and projection(i))
    # The prompt holds the tokens of all views: with others it would be another prompt.
    calls = sorted({i.invocation for i in terms if projection(i)})
    views = ("one crop", *(f"view {how}: {call}" for how in ("missing", "twice") for call in calls))
    for name, what in (("V", "vision tokens, newlines and separator among them"), ("S", "tokens of the whole prompt")):
        if name in everywhere and counted:
            moved = times(terms, projection, everywhere["B"] * everywhere[name] / counted)
            yield Effect(
                f"projector on {name}", "projector", f"the projector works on the {what}", moved, excludes=views
            )


def _features(term: ClaimTerm) -> Fraction:
    """Return the number of features of one view."""
    return Fraction(term.values["H"], term.values["sam_patch"]) ** 2 / _MERGED


MISTAKES: Final = Mistakes(
    _effects,
    of_run=frozenset({"one crop"}),
    # The vendor's channels-first norms, which the published figures are of.
    written_out=frozenset({"sam.neck.norm1", "sam.neck.norm2"}),
)
