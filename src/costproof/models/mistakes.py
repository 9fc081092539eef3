"""Define common mistakes in published numbers of single model families, which ``costproof check`` tries.

They concern the vision towers of DeepSeek-OCR, Qwen2.5-VL and Qwen3-VL, and what published numbers of DeepSeek-V3
include: an MTP module and scales of matrices, which its class lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Final

import sympy

from costproof.algebra.identity import free_symbols
from costproof.claims.effects import (
    ANY_METRIC,
    CACHE,
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
from costproof.claims.terms import ClaimTerm, dense_terms
from costproof.ledger.metrics import Metric

_STRIDE: Final = 2
_MERGED: Final = _STRIDE**4
"""Number of patches, 4 x 4, that two convolutions of stride 2 merge into one feature."""


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
        what = "crops are as large as the global view"
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
    """Return the number of features per view after the convolutions."""
    return Fraction(term.values["H"], term.values["sam_patch"]) ** 2 / _MERGED


_OCR_TABLE: Final = (
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
    _without("patch convolution missing", "patch", "the patch convolution is left out", "patch_embedding"),
    _without("convolutions missing", "neck", "neck and downsampling convolutions are left out", "conv2d"),
    Mistake("merger on patches", "neck", "convolutions that merge patches give one result per patch",
            (times(lambda t: t.role == "sam.downsample.conv1", _STRIDE**2),
             times(lambda t: t.role == "sam.downsample.conv2", _MERGED)), metrics=NOT_STAGE_WIDE),
    Mistake("class token missing", "class", "the class token is left out",
            (TermChange(lambda t: t.tower == "clip", lambda t: rewritten(t, _without_class)),), metrics=NOT_STAGE_WIDE),
    Mistake("projector on patches", "projector", "the projector works on patches, not merged ones",
            (times(_projection, _MERGED),), metrics=FLOPS),
    Mistake("projector with class token", "projector", "the projector works on a class token too",
            (TermChange(_projection, lambda t: 1 + 1 / _features(t)),), metrics=FLOPS),
    MistakeSeries("projector on V, projector on S", "the projector works on the vision tokens, or on the whole prompt",
                  _projector_on_tokens, FLOPS),
    Mistake("one crop", "view crops", "one crop is counted, not all", (substituted(_crop, n="B"),),
            metrics=NOT_STAGE_WIDE),
    MistakeSeries("crops as large as the view", "crops are as large as the global view", _large_crops,
                  NOT_STAGE_WIDE),
)  # fmt: skip

OCR_MISTAKES: Final = Mistakes(
    _OCR_TABLE,
    of_run=frozenset({"one crop"}),
    # The vendor's channels-first norms, which the published figures are of.
    written_out=frozenset({"sam.neck.norm1", "sam.neck.norm2"}),
)


_BLOCK: Final = 128
"""Number of rows, and of columns, of a quantisation block with one scale."""
_SCALE: Final = 4
"""Bytes of a quantisation scale, and of a bias of the router."""


_NAME: Final = "next-token module counted"
_CORRECTIONS: Final = "corrections of the router's scores are counted, which are buffers"
_IN_BLOCKS: Final = "matrices of layers have a scale per block of 128 x 128"


def _with_one_more(name: str, what: str, *more: TermChange, metrics: frozenset[Metric]) -> MistakeSeries:
    """Return the mistake of counting the multi-token-prediction layer as one more layer with experts."""

    def rows(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
        dense = {id(t) for t in dense_terms(terms)}
        layers = TermChange(
            lambda t: t.within("layer") and id(t) not in dense, lambda t: Fraction(t.count + 1, t.count)
        )
        yield Mistake(name, "next token", what, (layers, *more))

    return MistakeSeries(name, what, rows, metrics)


def _head_and_projection(term: ClaimTerm) -> Fraction:
    """Return the FLOPs of two LM heads and the 2h x h projection of an MTP module, divided by those of one LM head."""
    v = term.values
    tokens, mapped = (v["S"], v["L"]) if "S" in v else (1, 1)
    return 2 + Fraction(2 * v["text_hidden"] * tokens, v["text_vocab"] * mapped)


def _scales(term: ClaimTerm) -> Fraction | None:
    """Return the number of quantisation scales per matrix element of a term; ``None`` for a term without scales."""
    if not term.counted or not term.within("layer") or term.norm or term.part == "router":
        return None
    v = {name.removeprefix("text_"): value for name, value in term.values.items()}
    key, up, value = v["nope"] + v["rope"], v["nope"] + v["value"], v["value"]
    sides = {
        "q": (v["hidden"], v["heads"] * key),
        "q_down": (v["hidden"], v.get("q_rank", 0)),
        "q_up": (v.get("q_rank", 0), v["heads"] * key),
        "kv_down": (v["hidden"], v["kv_rank"] + v["rope"]),
        "kv_up": (v["kv_rank"], v["heads"] * up),
        "out": (v["heads"] * value, v["hidden"]),
    }
    wide = (
        v["moe"] if term.part == "experts" else v["moe"] * v["shared"] if term.within("shared") else v["intermediate"]
    )
    rows, columns = sides.get(term.part, (v["hidden"], wide))
    return Fraction(-(-rows // _BLOCK) * -(-columns // _BLOCK), rows * columns)


def _one_byte_with_scales(term: ClaimTerm) -> Fraction | None:
    scales = _scales(term)
    return scales and (1 + _SCALE * scales) / term.values["b"]


def _with_scales(term: ClaimTerm) -> Fraction | None:
    scales = _scales(term)
    return scales and 1 + scales


def _corrections_in_bytes(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    size = next((t.values["b"] for t in terms if "b" in t.values), 1)
    yield _corrected(Fraction(_SCALE, size), frozenset({"weight_bytes"}))


def _corrected(each: Fraction, metrics: frozenset[Metric]) -> Mistake:
    change = TermChange(lambda t: t.part == "router", lambda t: 1 + each / t.values["text_hidden"])
    return Mistake("router corrections counted", "corrections", _CORRECTIONS, (change,), metrics=metrics)


# The projection has 2 h x h elements; two norms precede it and one follows its layer.
_WIDER: Final = TermChange(lambda t: t.role == "text.norm", lambda t: Fraction(4 + 2 * t.values["text_hidden"]))
_TABLES: Final = times(lambda t: t.part in ("embedding", "lm_head"), 2)
_PARAMETERS: Final = frozenset[Metric]({"params", "params_active"})
_HELD: Final = _PARAMETERS | {"weight_bytes"}

_V3_TABLE: Final = (
    _with_one_more(_NAME, "the next-token module is counted, with a copy of embedding and lm_head", _WIDER, _TABLES,
                   metrics=_HELD),
    _with_one_more(f"{_NAME}, shared tables", "the next-token module is counted, without copies of "
                   "embedding and lm_head", _WIDER, metrics=_HELD),
    Mistake("8-bit matrices in blocks", "type", f"{_IN_BLOCKS}, of four bytes, and one byte per element",
            (TermChange(lambda t: True, _one_byte_with_scales),), metrics=frozenset({"weight_bytes"})),
    Mistake("scales counted", "scales", f"{_IN_BLOCKS}, counted as a parameter",
            (TermChange(lambda t: True, _with_scales),), metrics=_PARAMETERS),
    MistakeSeries("router corrections counted", _CORRECTIONS, _corrections_in_bytes, frozenset({"weight_bytes"})),
    _corrected(Fraction(1), _PARAMETERS),
    _with_one_more(_NAME, "the next-token module is counted: a layer, a projection of 2 h x h, logits once more",
                   TermChange(lambda t: t.part == "lm_head", _head_and_projection), metrics=FLOPS),
    _with_one_more(_NAME, "the layer of the next-token module has a cache too", metrics=CACHE),
)  # fmt: skip

V3_MISTAKES: Final = Mistakes(_V3_TABLE)


# --- Qwen2.5-VL and Qwen3-VL -----------------------------------------------------------------------------------------

_VOLUME: Final = 3 * 2
"""Number of channels times frames of a patch."""
_NO_PATCHES: Final = Mistake(
    "patch convolution missing", "patch", "the patch convolution is left out",
    (left_out(lambda t: t.owner == "volume_patches"),), metrics=NOT_STAGE_WIDE,
)  # fmt: skip


def _merger(term: ClaimTerm) -> bool:
    return term.role.startswith(("vision.merger", "vision.deep_merger"))


def _on_patches(merged: Callable[[ClaimTerm], Fraction]) -> TermChange:
    """Return the mistake of running the patch merger on every patch; ``merged`` gives the patches per token."""
    return TermChange(lambda t: _merger(t) and t.owner == "linear", merged)


def _in_window_layers(term: ClaimTerm) -> bool:
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
            "the merger works on every patch, not on merged ones",
            (_on_patches(lambda t: Fraction(t.values["vision_merge"]) ** 2),), metrics=NOT_STAGE_WIDE),
    _NO_PATCHES,
    Mistake("windows as full attention", "window", "window layers attend to the whole image",
            (substituted(_in_window_layers, vision_window="U"),), metrics=NOT_STAGE_WIDE),
    Mistake("window of pixels as of patches", "window",
            "the side of a window in pixels is taken to be in patches",
            (TermChange(_in_window_layers, _of_pixels),), metrics=FLOPS),
))  # fmt: skip

QWEN3_VL_VISION: Final = Mistakes((
    Mistake("mergers missing", "merger", "the mergers are left out", (left_out(_merger),)),
    Mistake("mergers on patches", "merger",
            "the mergers work on every patch, not on merged ones",
            (_on_patches(lambda t: Fraction(t.values["vision_merged"])),), metrics=NOT_STAGE_WIDE),
    _NO_PATCHES,
))  # fmt: skip
