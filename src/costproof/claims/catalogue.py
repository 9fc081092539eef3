"""Collect all known mistakes in one table, and compute the effect of each on a claim."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import inf

from costproof.algebra.series import CACHED
from costproof.claims.attention_mistakes import LATENTS, ROWS, WINDOWS
from costproof.claims.effects import ClaimTerms, Effect, Mistake, Mistakes, MistakeTable
from costproof.claims.memory_mistakes import BYTES_AND_CACHES, FORMATS, PEAKS, RANKS
from costproof.claims.mistakes import DECODER, REST, RULES_OF_THUMB, TRAINING, VIEWS, units
from costproof.claims.terms import ClaimTerm
from costproof.ledger.errors import Recount, check_recounts
from costproof.ledger.metrics import Metric


def mistake_table(own: Mistakes) -> MistakeTable:
    """Return all known mistakes, in the order in which the search tries them.

    Args:
        own: the mistakes that the target adds.
    """
    general = (*RANKS, *TRAINING, *RULES_OF_THUMB, *DECODER, *LATENTS, *WINDOWS, *ROWS, *BYTES_AND_CACHES, *FORMATS)
    return (*units(own.written_out), *general, *own.table, *VIEWS, *REST, *PEAKS)


def effects(terms: ClaimTerms, metric: Metric, own: Mistakes, everywhere: Mapping[str, int]) -> tuple[Effect, ...]:
    """Return the effects on a claim of all mistakes that can change the claimed number.

    Mistakes with exactly the same effect are merged: the first gives the name, the others become aliases.

    Args:
        terms: the terms of the claim.
        metric: the metric of the claim.
        own: the mistakes that the target adds.
        everywhere: symbol -> value, for symbols with the same value in all calls of the run.
    """
    merged: dict[tuple[object, ...], Effect] = {}
    for mistake in _mistakes(terms, metric, own, everywhere):
        effect = mistake.effect(terms)
        check_recounts(_window_recounts(mistake, effect, terms, metric))
        check_recounts(_format_recounts(mistake, effect, terms))
        factors = {i: f for i, f in effect.factors.items() if terms[i].value}
        switches = frozenset(i for i in effect.switches if terms[i].value and factors.get(i) != 0)
        if not switches and not factors:
            continue
        slim = replace(effect, factors=factors, switches=switches)
        # A term that is counted neither before nor after does not distinguish two mistakes.
        seen = frozenset((i, f) for i, f in factors.items() if terms[i].counted or i in switches)
        key = (seen, switches, effect.requires)
        if key in merged:
            first = merged[key]
            merged[key] = replace(first, aliases=(*first.aliases, slim.cause))
        else:
            merged[key] = slim
    return tuple(merged.values())


def _mistakes(terms: ClaimTerms, metric: Metric, own: Mistakes, everywhere: Mapping[str, int]) -> Iterator[Mistake]:
    for row in mistake_table(own):
        if metric in row.metrics:
            yield from [row] if isinstance(row, Mistake) else row.rows(terms, everywhere)


def _seen(until: int, most: float = inf) -> int:
    """Return the number of keys that the tokens 1 to ``until`` see, each itself and those before, at most ``most``."""
    growing = int(min(max(until, 0), most))
    return growing * (growing + 1) // 2 + growing * (max(until, 0) - growing)


def _in_window(cause: str, requires: str, metric: Metric, term: ClaimTerm) -> tuple[int, int] | None:
    """Return the fraction of a term that a mistake on windows or chunks counts: what it has, and what is right.

    By sums over all positions of what each token sees or holds, apart from the factors of the mistakes.

    Returns:
        ``None`` for other mistakes.
    """
    v, width, past = term.values, term.window or term.chunk, term.values.get(CACHED.name, 0)
    if cause.startswith(("window S x W", "window band", "chunk S x C", "chunk triangles")) and "S" in v:
        end, most = past + v["S"], inf if term.chunk else width
        counted = v["S"] * width if " x " in cause else _seen(end, most) - _seen(past, most)
        if "triangles" in cause:  # the first token of a chunk sees one, the last all
            counted = sum(sign * (_seen(n % width) + n // width * _seen(width)) for n, sign in ((end, 1), (past, -1)))
        behind = min(past, width - 1) if term.window else past
        right = v["S"] * (behind + v["S"])
        if requires == "causal triangle":
            right = _seen(behind + v["S"]) - _seen(behind)
        halves = {"causal half": (2, 1), "causal 1.8": (9, 5)}
        more, less = halves.get(requires, (1, 1))
        return counted * more, right * less
    first, last = v.get("P", 0), v.get("P", 0) + v.get("N", 0)
    if cause == "windows as full attention":
        last = first + 1 if requires else last
        return _seen(last) - _seen(first), _seen(last, width) - _seen(first, width)
    if cause == "windows cached in full" and metric == "kv_cache_bytes":
        return (v["S"], min(v["S"], width - 1)) if "S" in v else (1, 1)
    if cause == "windows cached in full":  # what a step reads was there before it
        return _seen(last - 1) - _seen(first - 1), _seen(last - 1, width - 1) - _seen(first - 1, width - 1)
    if cause == "cache of windows missing":
        return 0, 1
    if cause == "window cached with its own token":
        held = v.get("S", v.get("P", 0))
        return min(held, width), min(held, width - 1)
    if found := re.fullmatch(r"blocks of (\d+) tokens", cause):
        size = int(found[1])
        held = v.get("S", 0) if not term.window else min(v.get("S", 0), width - 1)
        if "S" in v:
            return held + -held % size, held
        if {"N", "P"} <= v.keys() and not term.window:
            return (last + -last % size) - (first + -first % size), last - first
        return 1, 1
    return None


def _window_recounts(mistake: Mistake, effect: Effect, terms: ClaimTerms, metric: Metric) -> Iterator[Recount]:
    """Yield second counts of the factors of mistakes on windows, chunks and blocks."""
    if mistake.family not in ("window", "chunk", "blocks"):
        return
    for i, term in enumerate(terms):
        if any(change.pick(term) for change in mistake.changes):
            again = _in_window(mistake.cause, mistake.requires, metric, term)
            if again is not None and again[1]:
                where = f"{mistake.cause}, {term.role or term.owner}"
                yield Recount("claim", where, "factor", effect.factors.get(i, Fraction(1)), Fraction(*again))


def _format_recounts(mistake: Mistake, effect: Effect, terms: ClaimTerms) -> Iterator[Recount]:
    """Yield second counts of the factors of unpacking weights again for each token.

    A token unpacks a plain matrix once, and of experts those that it chooses; a call unpacks each expert that any of
    its tokens chooses, at most all.
    """
    if mistake.cause != "unpacked for each token":
        return
    for i, term in enumerate(terms):
        v, of = term.values, f"{term.tower}_experts"
        if not any(change.pick(term) for change in mistake.changes) or not v.keys() & {"S", "N"}:
            continue
        tokens = v["B"] * (v["L"] if term.part == "lm_head" and "L" in v else v.get("S", 1))
        if of not in term.expr:
            again = Fraction(tokens)
        elif "Min(" in term.expr and f"{term.tower}_topk" in v and v.get("ep", 1) == 1:
            chosen = v[f"{term.tower}_topk"]
            again = Fraction(tokens * chosen, min(v[of], tokens * chosen))
        else:
            continue
        where = f"{mistake.cause}, {term.role or term.owner}"
        yield Recount("claim", where, "factor", effect.factors.get(i, Fraction(1)), again)


STATED: dict[tuple[str, str], str] = {
    ("unit", "mac"): "mac",
    ("unit", "flop"): "",
    ("counter", "fvcore"): "fvcore",
    ("causal", "full"): "",
    ("causal", "triangle"): "causal triangle",
    ("causal", "half"): "causal half",
    ("logits", "all"): "",
    ("logits", "last"): "lm_head last token",
    ("logits", "none"): "lm_head missing",
    ("window", "full"): "",
    ("window", "width"): "window S x W",
    ("window", "band"): "window band",
    ("chunks", "full"): "",
    ("chunks", "width"): "chunk S x C",
    ("chunks", "triangles"): "chunk triangles",
    ("gather", "counted"): "",
    ("gather", "left out"): "gather of logits missing",
    ("passes", "forward"): "",
    ("passes", "training"): "6ND",
    ("passes", "training, fused attention"): "6ND, fused attention",
    ("cache", "8 bits"): "8-bit cache",
    ("cache", "4 bits"): "4-bit cache",
    ("cached_windows", "window"): "",
    ("cached_windows", "full"): "windows cached in full",
    ("window_padding", "counted"): "",
    ("window_padding", "left out"): "window padding missing",
    ("attention_scores", "left out"): "attention missing",
    ("norms", "counted"): "norms counted",
}
"""Cause equivalent to a (convention, value) that a claim may state; empty for costproof's own convention."""


READINGS: frozenset[str] = frozenset(
    {"mac", "causal triangle", "causal half", "lm_head last token", "lm_head all tokens"}
)
"""Causes that are other conventions for the same work, at any sequence length."""

WIDTHS: frozenset[str] = frozenset({"32-bit cache", "16-bit cache", "8-bit cache", "4-bit cache"})
"""Causes that are other bit widths of the same cache."""

CONVENTIONS: frozenset[str] = READINGS | WIDTHS | {
    "window S x W", "window band", "windows as full attention", "chunk S x C", "chunk triangles", "kept scores",
    "all-reduce = M", "all-reduce = 2 M", "all-reduce = (n - 1) M", "gather = M", "gather of logits missing",
    "windows cached in full", "window cached with its own token", "cache of windows missing",
}  # fmt: skip
"""Causes that are other conventions for the same work or cache; a single one needs no further evidence.

This holds even if a product of sizes would fit the claim by chance, since every cache size is a product of sizes. Every
other cause adds work, omits work, or changes the model or its run.
"""

OF_RANKS: frozenset[str] = frozenset({
    "K/V heads not / tp", "K/V heads / tp", "latents / tp", "all / tp", "routers / tp", "norms / tp",
    "projections to latents / tp", "experts not / ep", "one device", "vocabulary not / tp",
    "all / pp", "all / (tp x pp)", "layers / pp", "all stages",
    "top-k copies", "min(top-k, ep - 1) copies", "tokens sent to their experts", "choices not sent",
    "fp8 dispatch", "fp8 dispatch without scales", "fp8 dispatch with choices",
    "fp8 dispatch without scales, with choices",
})  # fmt: skip
"""Known mistakes in the share of one of several devices; one of them, or two, need no further evidence.

They are few, and rank numbers are products of sizes, which fit by chance with any size free.
"""

CONVENTION_CAUSES: frozenset[str] = CONVENTIONS | {*STATED.values(), "full recompute"} - {""}
"""Causes that a claim may state as its conventions, and training with recomputation (four passes)."""

PART_OF_CALLS = "view missing"
"""Prefix of causes by which a claimed number covers only some calls of a stage."""
