"""Mistakes in numbers of bytes and of what is kept: elements for bytes, another type, the cache, one layer for all."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from costproof.claims.effects import ClaimTerms, Effect, changed, scaled, switched, times
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import BYTES, METRICS, STAGE_WIDE, Metric

TYPES: Final = {
    1: ("element size forgotten", "elements are counted, or an element is taken to have one byte"),
    2: ("two bytes each", "an element is taken to have two bytes, as in bfloat16"),
    4: ("four bytes each", "an element is taken to have four bytes, as in float32"),
}
_CACHE: Final = ("kv_cache_bytes", "kv_read_bytes")
_PREFIXES: Final = (("M", 10**6, 2**20), ("G", 10**9, 2**30))


def effects(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    """All of them, whether they change this claim or not."""
    if METRICS[metric].unit == "elements":
        for size in (2, 4):
            what = f"bytes are counted, {size} for each element"
            yield Effect(f"bytes, {size} each", "unit", what, times(terms, lambda i: i.counted, size))
    if metric not in BYTES:
        return
    for size, (cause, what) in TYPES.items():
        yield changed(terms, cause, "type", what, lambda i: "b" in i.values, b=str(size))
    if metric in _CACHE:
        for bits in (8, 4):
            what = f"keys and values are cached in {bits} bits each, without scales"
            yield changed(terms, f"{bits}-bit cache", "type", what, lambda i: "b" in i.values, b=f"{bits}/8")
    yield from prefixes(terms)
    if metric == "weight_read_bytes":
        rows = times(terms, lambda i: i.counted and i.part == "embedding", 0)
        what = "tables of embeddings are read whole, not the rows that are looked up"
        yield Effect("whole tables", "tables", what, rows, switched(terms, "tables"))
    if metric in _CACHE:
        yield from _cache(terms, metric)
    elif metric not in STAGE_WIDE:
        what = "of equal layers one is counted, as if its activations took the room of the others'"
        yield Effect("one layer", "depth", what, scaled(terms, _layer, lambda i: Fraction(1, i.count)))


def prefixes(terms: ClaimTerms) -> Iterator[Effect]:
    """Binary and decimal prefixes, one taken for the other."""
    for p, decimal, binary in _PREFIXES:
        what = f"the number is in {p}iB and called {p}B"
        yield Effect(f"{p}iB for {p}B", "unit", what, times(terms, lambda i: True, Fraction(decimal, binary)))
        what = f"the number is in {p}B and called {p}iB"
        yield Effect(f"{p}B for {p}iB", "unit", what, times(terms, lambda i: True, Fraction(binary, decimal)))


def _layer(term: ClaimTerm) -> bool:
    return term.counted and term.within("layer")


def _cache(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    yield Effect(
        "keys or values alone", "cache", "of keys and values one is counted", times(terms, _layer, Fraction(1, 2))
    )
    layers = {c: sum(i.count for i in terms if _layer(i) and _call(i) == c) for c in map(_call, terms)}
    alone = scaled(terms, _layer, lambda i: Fraction(1, layers[_call(i)]))
    yield Effect("one layer", "depth", "the cache of one layer is counted", alone)

    def steps(i: ClaimTerm) -> bool:
        return _layer(i) and {"N", "P"} <= i.values.keys()

    if metric == "kv_cache_bytes":
        what = "all that the cache holds at the end is counted, not what the steps append"
        whole = scaled(terms, steps, lambda i: Fraction(i.values["P"] + i.values["N"], i.values["N"]))
        yield Effect("whole cache", "length", what, whole)
    else:
        what = "every step reads what the first one does"
        frozen = scaled(terms, steps, lambda i: Fraction(2 * i.values["P"], 2 * i.values["P"] + i.values["N"] - 1))
        yield Effect("decode context frozen", "length", what, frozen)


def _call(term: ClaimTerm) -> tuple[str, str, str]:
    return term.tower, term.stage, term.invocation
