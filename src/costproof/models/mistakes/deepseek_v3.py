"""List what published numbers of DeepSeek-V3 include and its class lacks: the MTP module, and scales of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from costproof.claims.effects import CACHE, FLOPS, ClaimTerms, Mistake, Mistakes, MistakeSeries, TermChange, times
from costproof.claims.terms import ClaimTerm, dense_terms
from costproof.ledger.metrics import Metric

_BLOCK: Final = 128
"""Rows, and columns, of a block with one scale."""
_SCALE: Final = 4
"""Bytes of a scale, and of a bias of the router."""


_NAME: Final = "next-token module counted"
_CORRECTIONS: Final = "the corrections of the router's scores are counted, which the class holds as buffers"
_IN_BLOCKS: Final = "a matrix of a layer has a scale for every block of 128 x 128"


def _with_one_more(name: str, what: str, *more: TermChange, metrics: frozenset[Metric]) -> MistakeSeries:
    """Return the mistake of counting the next-token layer as one more layer with experts, with further changes."""

    def rows(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
        dense = {id(t) for t in dense_terms(terms)}
        layers = TermChange(
            lambda t: t.within("layer") and id(t) not in dense, lambda t: Fraction(t.count + 1, t.count)
        )
        yield Mistake(name, "next token", what, (layers, *more))

    return MistakeSeries(name, what, rows, metrics)


def _head_and_projection(term: ClaimTerm) -> Fraction:
    """Return the FLOPs of two output projections and a 2h x h projection, relative to one output projection."""
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

TABLE: Final = (
    _with_one_more(_NAME, "the module that predicts one more token is counted, with a copy of embedding and output "
                   "projection", _WIDER, _TABLES, metrics=_HELD),
    _with_one_more(f"{_NAME}, shared tables", "the module that predicts one more token is counted; embedding and "
                   "output projection are the model's own", _WIDER, metrics=_HELD),
    Mistake("8-bit matrices in blocks", "type", f"{_IN_BLOCKS}, of four bytes, and one byte for each element",
            (TermChange(lambda t: True, _one_byte_with_scales),), metrics=frozenset({"weight_bytes"})),
    Mistake("scales counted", "scales", f"{_IN_BLOCKS}, which is counted as a parameter",
            (TermChange(lambda t: True, _with_scales),), metrics=_PARAMETERS),
    MistakeSeries("router corrections counted", _CORRECTIONS, _corrections_in_bytes, frozenset({"weight_bytes"})),
    _corrected(Fraction(1), _PARAMETERS),
    _with_one_more(_NAME, "the module that predicts one more token is counted: a layer, a projection of 2 h x h, "
                   "logits once more", TermChange(lambda t: t.part == "lm_head", _head_and_projection), metrics=FLOPS),
    _with_one_more(_NAME, "the layer of the module that predicts one more token has a cache too", metrics=CACHE),
)  # fmt: skip

MISTAKES: Final = Mistakes(TABLE)
