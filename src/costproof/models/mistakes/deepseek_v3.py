"""What published numbers of DeepSeek-V3 hold beside the class: its module for the next token, and stored matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from costproof.claims.effects import ClaimTerms, Effect, Mistakes, scaled, times
from costproof.claims.terms import ClaimTerm, dense_terms
from costproof.ledger.metrics import Metric

_HELD: Final = ("params", "params_active", "weight_bytes")
_BLOCK: Final = 128
"""Rows and columns of a block that has one scale."""
_SCALE: Final = 4
"""Bytes of a scale, and of a bias of the router."""


def _effects(terms: ClaimTerms, metric: Metric, everywhere: Mapping[str, int]) -> Iterator[Effect]:
    name = "next-token module counted"
    more = _one_more(terms)
    if metric in _HELD:
        # Its projection has 2 h x h elements; two norms stand before it and one behind its layer.
        wider = more | scaled(
            terms, lambda i: i.role == "text.norm", lambda i: Fraction(4 + 2 * i.values["text_hidden"])
        )
        tables = times(terms, lambda i: i.part in ("embedding", "lm_head"), 2)
        what = "the module that predicts one more token is counted, with a copy of embedding and output projection"
        yield Effect(name, "next token", what, wider | tables)
        what = "the module that predicts one more token is counted; embedding and output projection are the model's own"
        yield Effect(f"{name}, shared tables", "next token", what, wider)
        yield from _stored(terms, metric)
    elif metric == "flops":
        what = "the module that predicts one more token is counted: a layer, a projection of 2 h x h, logits once more"
        head = scaled(terms, lambda i: i.part == "lm_head", _head_and_projection)
        yield Effect(name, "next token", what, more | head)
    elif metric in ("kv_cache_bytes", "kv_read_bytes"):
        yield Effect(name, "next token", "the layer of the module that predicts one more token has a cache too", more)


def _one_more(terms: ClaimTerms) -> dict[int, Fraction]:
    """Return the scale factors for one more layer with experts."""
    dense = {id(i) for i in dense_terms(terms)}
    return scaled(terms, lambda i: i.within("layer") and id(i) not in dense, lambda i: Fraction(i.count + 1, i.count))


def _head_and_projection(term: ClaimTerm) -> Fraction:
    """Return the factor for twice the logits and a projection of 2 h x h, relative to 2 h V FLOPs a token."""
    v = term.values
    tokens, mapped = (v["S"], v["L"]) if "S" in v else (1, 1)
    return 2 + Fraction(2 * v["text_hidden"] * tokens, v["text_vocab"] * mapped)


def _stored(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    """Yield the effects of 8-bit matrices with block scales, and of tensors that only the checkpoint has."""
    what = "a matrix of a layer has a scale for every block of 128 x 128"
    if metric == "weight_bytes":
        in_blocks = scaled(terms, lambda i: True, lambda i: (s := _scales(i)) and (1 + _SCALE * s) / i.values["b"])
        yield Effect(
            "8-bit matrices in blocks", "type", f"{what}, of four bytes, and one byte for each element", in_blocks
        )
        each = Fraction(_SCALE, _size(terms))
    else:
        counted = scaled(terms, lambda i: True, lambda i: (s := _scales(i)) and 1 + s)
        yield Effect("scales counted", "scales", f"{what}, which is counted as a parameter", counted)
        each = Fraction(1)
    biased = scaled(terms, lambda i: i.part == "router", lambda i: 1 + each / i.values["text_hidden"])
    what = "the corrections of the router's scores are counted, which the class holds as buffers"
    yield Effect("router corrections counted", "corrections", what, biased)


def _size(terms: ClaimTerms) -> int:
    """Return the bytes of an element in the dtype of the run."""
    return next((i.values["b"] for i in terms if "b" in i.values), 1)


def _scales(term: ClaimTerm) -> Fraction | None:
    """Return the number of scales per element of a matrix of a layer; ``None`` without scales."""
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


MISTAKES: Final = Mistakes(_effects)
