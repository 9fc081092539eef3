"""The mistakes that the search knows, each as a transformation whose size follows from the truth's own nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

from costproof.algebra.evaluation import compile_expression
from costproof.claims import (
    bytes_mistakes,
    decoder_mistakes,
    latent_mistakes,
    peak_mistakes,
    rules_of_thumb,
    training_mistakes,
    window_mistakes,
)
from costproof.claims.effects import ClaimTerms, Effect, Mistakes, added, changed, put, scaled, switched, times, without
from costproof.claims.terms import BIASED, ClaimTerm, bias_of
from costproof.ledger.metrics import PEAK_METRICS, STAGE_WIDE, Metric


def effects(terms: ClaimTerms, metric: Metric, own: Mistakes, everywhere: Mapping[str, int]) -> tuple[Effect, ...]:
    """All causes that can change this claim; those that do exactly the same are one, with the other names beside.

    Args:
        own: what the target knows about wrong models of itself.
        everywhere: symbols that have one value everywhere.
    """
    merged: dict[tuple[object, ...], Effect] = {}
    for effect in _all(terms, metric, own, everywhere):
        factors = {i: f for i, f in effect.factors.items() if f != 1 and terms[i].value}
        switches = frozenset(i for i in effect.switches if terms[i].value and factors.get(i) != 0)
        if not switches and not factors:
            continue
        slim = replace(effect, factors=factors, switches=switches)
        # What is off and stays off cannot tell two causes apart.
        seen = frozenset((i, f) for i, f in factors.items() if terms[i].counted or i in switches)
        key = (seen, switches, effect.requires)
        if key in merged:
            kept = merged[key]
            merged[key] = replace(kept, or_else=(*kept.or_else, slim.cause))
        else:
            merged[key] = slim
    return tuple(merged.values())


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
"""(convention, value) -> the cause that it is, or nothing where it is ours."""


READINGS: frozenset[str] = frozenset(
    {"mac", "causal triangle", "causal half", "lm_head last token", "lm_head all tokens"}
)
"""Ways to count the same work at any length."""

CONVENTIONS: frozenset[str] = READINGS | {
    "window S x W", "window band", "windows as full attention",
    "windows cached in full", "window cached with its own token", "cache of windows missing",
    "8-bit cache", "4-bit cache",
}  # fmt: skip
"""Ways to count the same work, and to hold the same cache, which need no evidence: a cache is a product of sizes, so
that no number of it could be any. Every other cause adds work, leaves some out, or changes the model or its run."""


def _all(terms: ClaimTerms, metric: Metric, own: Mistakes, everywhere: Mapping[str, int]) -> Iterator[Effect]:
    if metric in PEAK_METRICS:
        yield from peak_mistakes.effects(terms, metric)
        return
    flops = metric == "flops"
    if flops:
        yield from _units(terms, own)
        yield from training_mistakes.effects(terms)
        yield from rules_of_thumb.effects(terms)
    yield from decoder_mistakes.effects(terms, metric)
    yield from latent_mistakes.effects(terms, metric)
    yield from window_mistakes.effects(terms, metric)
    yield from bytes_mistakes.effects(terms, metric)
    yield from own.effects(terms, metric, everywhere)
    if metric not in STAGE_WIDE:
        yield from _views(terms)
        yield _batch(terms)
    yield from _sizes(terms)
    if flops:
        yield from _flops_only(terms)
    else:
        yield from _parameters(terms)


def _units(terms: ClaimTerms, own: Mistakes) -> Iterator[Effect]:
    half = times(terms, lambda i: i.products, Fraction(1, 2))
    yield Effect("mac", "unit", "a multiply-accumulate is counted as one", half)
    twice = times(terms, lambda i: True, 2)
    yield Effect("doubled", "unit", "everything is counted twice: two operations per FLOP", twice)
    lost = times(terms, lambda i: i.scores, 0)
    sums = scaled(terms, lambda i: i.kind == "einsum", _einsum_of_fvcore)
    yield Effect(
        "fvcore",
        "unit",
        "fvcore's conventions: a multiply-accumulate is one, attention kernels are left out, "
        "a layer norm is 5 per element",
        {**half, **sums, **lost},
        frozenset(i for i in switched(terms, "norms at 5") if terms[i].role not in own.written_out),
    )


def _einsum_of_fvcore(term: ClaimTerm) -> Fraction:
    """Half of numpy's operation count, which is read from a text of four digits."""
    each = term.value / term.count / 2
    rounded = Fraction(f"{int(each):.3e}") / 2 if each.denominator == 1 else each / 2
    return Fraction(int(rounded)) / each


def _flops_only(terms: ClaimTerms) -> Iterator[Effect]:
    yield added(terms, "norms counted", "vector", "norms are counted as FLOPs", "norms")
    what = "norms are counted as one operation for each element"
    yield added(terms, "norms at 1", "vector", what, "norms at 1")
    what = "norms, softmax, activations, rotary and residuals are counted as FLOPs"
    yield added(terms, "vector work counted", "vector", what, "norms", "vector")
    yield added(terms, "biases counted", "biases", "additions of biases are counted as FLOPs", "biases")
    what = "scores and weighted sum of attention are left out"
    yield without(terms, "attention missing", "attention", what, lambda i: i.scores)


def _views(terms: ClaimTerms) -> Iterator[Effect]:
    """Calls of what is not a decoder: each may be forgotten, or counted twice."""
    calls = sorted({(i.invocation) for i in terms if not i.text and i.counted})
    for name in calls:
        inside = times(terms, lambda i, name=name: not i.text and i.invocation == name, 0)  # type: ignore[misc]
        if len(calls) > 1 or any(i.text for i in terms):
            yield Effect(f"view missing: {name}", f"view {name}", f"the {name} view is not counted", inside)
        twice = dict.fromkeys(inside, Fraction(2))
        yield Effect(f"view twice: {name}", f"view {name}", f"the {name} view is counted twice", twice)


def _batch(terms: ClaimTerms) -> Effect:
    """One of the batch; a call has as many views for each as there are for all. Without a formula all is by the one."""

    def one(term: ClaimTerm) -> Fraction | None:
        return put(term, B="1", n="n / B") if term.expr else Fraction(1, term.values["B"])

    what = "one of the batch is counted in place of all"
    return Effect("batch forgotten", "batch", what, scaled(terms, lambda i: "B" in i.values, one))


def _sizes(terms: ClaimTerms) -> Iterator[Effect]:
    """Dimensions mixed up in the same way for every tower: by the names of its symbols."""
    prefixes = sorted({n.removesuffix("_head_dim") for i in terms for n in i.values if n.endswith("_head_dim")})
    for p in prefixes:

        def here(i: ClaimTerm, tower: str = p) -> bool:
            return i.tower == tower

        what = f"{p} heads are taken to be hidden / heads wide"
        yield changed(terms, f"head_dim = hidden / heads: {p}", "head_dim", what, here, head_dim="hidden / heads")
        what = "every query head has keys and values of its own"
        yield changed(terms, f"GQA ignored: {p}", "gqa", what, here, kv_heads="heads")


def _parameters(terms: ClaimTerms) -> Iterator[Effect]:
    def positions(i: ClaimTerm) -> bool:
        return i.part == "positions" or i.owner in ("position_embedding", "class_and_positions")

    for what, missing, pick in (
        ("embedding missing", "the embedding is left out", lambda i: i.part == "embedding"),
        ("norms missing", "norms are left out", lambda i: i.norm),
        ("position tables missing", "position tables are left out", positions),
    ):
        yield without(terms, what, what, missing, pick)
    bare = scaled(terms, lambda i: i.owner in BIASED, _without_bias)
    yield Effect("biases missing", "biases", "biases are left out", bare)
    what = "parameters are counted that the checkpoint holds and nothing runs"
    yield added(terms, "unexecuted counted", "unexecuted", what, "unexecuted")


def _without_bias(term: ClaimTerm) -> Fraction | None:
    parts = bias_of(term.expr) if term.expr else None
    if parts is None:
        return None
    weights, bias = (Fraction(compile_expression(p).run(term.values)) for p in parts)
    return weights / (weights + bias)
