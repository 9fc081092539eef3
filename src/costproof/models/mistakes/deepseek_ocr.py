"""Known mistakes in cost models of DeepSeek-OCR's vision towers, projector and image tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Final

import sympy

from costproof.algebra.identity import free_symbols
from costproof.claims.effects import (
    ANY_METRIC,
    FLOPS,
    NOT_STAGE_WIDE,
    ClaimTerms,
    Mistake,
    Mistakes,
    MistakeSeries,
    TermChange,
    left_out,
    rewritten,
    substituted,
    times,
)
from costproof.claims.terms import ClaimTerm

_STRIDE: Final = 2
_MERGED: Final = _STRIDE**4
"""Number of patches, 4 x 4, that two convolutions of stride 2 merge to one feature."""


def _windowed(term: ClaimTerm) -> bool:
    return term.expr != "" and "sam_window" in free_symbols(term.expr)


def _in_windows(change: Callable[[sympy.Expr], sympy.Expr]) -> TermChange:
    return TermChange(_windowed, lambda term: rewritten(term, change))


def _without(cause: str, family: str, what: str, owner: str) -> Mistake:
    changes = (left_out(lambda t: t.owner == owner and t.products),)
    return Mistake(cause, family, what, changes, metrics=NOT_STAGE_WIDE)


def _crop(term: ClaimTerm) -> bool:
    return term.invocation == "crops"


def _large_crops(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    side = max((t.values["H"] for t in terms if t.invocation == "global"), default=None)
    if side is not None:
        what = "crops are taken to be as large as the global view"
        yield Mistake("crops as large as the view", "view crops", what, (substituted(_crop, H=str(side)),))


def _projection(term: ClaimTerm) -> bool:
    return term.role == "projector" and term.owner == "linear"


def _projector_on_tokens(terms: ClaimTerms, everywhere: Mapping[str, int]) -> Iterator[Mistake]:
    counted = sum(t.values["n"] * _features(t) for t in terms if t.counted and _projection(t))
    # The prompt holds the tokens of all views: with others it would be another prompt.
    calls = sorted({t.invocation for t in terms if _projection(t)})
    views = ("one crop", *(f"view {how}: {call}" for how in ("missing", "twice") for call in calls))
    for name, what in (("V", "vision tokens, newlines and separator among them"), ("S", "tokens of the whole prompt")):
        if name in everywhere and counted:
            moved = times(_projection, everywhere["B"] * everywhere[name] / counted)
            what = f"the projector works on the {what}"
            yield Mistake(f"projector on {name}", "projector", what, (moved,), excludes=views)


def _without_padding(expr: sympy.Expr) -> sympy.Expr:
    return expr.replace(sympy.ceiling, lambda inside: inside)


def _floored(expr: sympy.Expr) -> sympy.Expr:
    return expr.replace(sympy.ceiling, sympy.floor)


def _padded_once(expr: sympy.Expr) -> sympy.Expr:
    """Replace ``ceiling(x)²`` by ``ceiling(x) x``: the mistake of padding to whole windows along one side only."""
    return expr.replace(
        lambda e: e.is_Pow and isinstance(e.base, sympy.ceiling) and e.exp == 2, lambda e: e.base * e.base.args[0]
    )


def _without_class(expr: sympy.Expr) -> sympy.Expr:
    """Subtract one token wherever a formula counts features + 1: the mistake of omitting the class token."""
    tokens = [
        a for a in expr.atoms(sympy.Add)
        if a.has(sympy.Symbol("H", integer=True, positive=True)) and a.as_coeff_Add()[0] == 1
    ]  # fmt: skip
    return expr.xreplace({a: a - 1 for a in tokens})


def _features(term: ClaimTerm) -> Fraction:
    """Return the number of features of one view."""
    return Fraction(term.values["H"], term.values["sam_patch"]) ** 2 / _MERGED


TABLE: Final = (
    Mistake("newline and separator missing", "newline and separator missing",
            "the tokens between image features are left out", (left_out(lambda t: t.owner == "image_tokens"),),
            metrics=ANY_METRIC - NOT_STAGE_WIDE),
    Mistake("windows as full attention", "window", "window layers attend to the whole view",
            (substituted(_windowed, window="H / patch"),), metrics=NOT_STAGE_WIDE),
    Mistake("window padding missing", "window", "windows are not padded", (_in_windows(_without_padding),),
            metrics=NOT_STAGE_WIDE),
    Mistake("partial windows missing", "window", "windows that the view does not fill are left out",
            (_in_windows(_floored),), metrics=NOT_STAGE_WIDE),
    Mistake("windows padded one way", "window", "windows are padded only along one side",
            (_in_windows(_padded_once),), metrics=NOT_STAGE_WIDE),
    _without("relative positions missing", "relative", "relative position terms are left out", "relative_position"),
    _without("patch convolution missing", "patch", "the patch embedding is left out", "patch_embedding"),
    _without("convolutions missing", "neck", "neck and downsampling convolutions are left out", "conv2d"),
    Mistake("merger on patches", "neck", "the convolutions that merge patches give one result for every patch",
            (times(lambda t: t.role == "sam.downsample.conv1", _STRIDE**2),
             times(lambda t: t.role == "sam.downsample.conv2", _MERGED)), metrics=NOT_STAGE_WIDE),
    Mistake("class token missing", "class", "the class token is forgotten",
            (TermChange(lambda t: t.tower == "clip", lambda t: rewritten(t, _without_class)),), metrics=NOT_STAGE_WIDE),
    Mistake("projector on patches", "projector", "the projector works on the patches before they are merged",
            (times(_projection, _MERGED),), metrics=FLOPS),
    Mistake("projector with class token", "projector", "the projector works on a class token too",
            (TermChange(_projection, lambda t: 1 + 1 / _features(t)),), metrics=FLOPS),
    MistakeSeries("projector on V, projector on S", "the projector works on the vision tokens, or on the whole prompt",
                  _projector_on_tokens, FLOPS),
    Mistake("one crop", "view crops", "one crop is counted in place of all", (substituted(_crop, n="B"),),
            metrics=NOT_STAGE_WIDE),
    MistakeSeries("crops as large as the view", "crops are taken to be as large as the global view", _large_crops,
                  NOT_STAGE_WIDE),
)  # fmt: skip

MISTAKES: Final = Mistakes(
    TABLE,
    of_run=frozenset({"one crop"}),
    # The vendor's channels-first norms, which the published figures are of.
    written_out=frozenset({"sam.neck.norm1", "sam.neck.norm2"}),
)
