"""Mistakes in models of decoders: output projection, embedding, attention, experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

from costproof.claims.effects import ClaimTerms, Effect, added, changed, put, scaled, switched, times, without
from costproof.claims.terms import RULES, ClaimTerm, dense_terms
from costproof.ledger.metrics import STAGE_WIDE, Metric


def effects(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    """All of them, whether they change this claim or not."""
    yield from _head(terms, metric)
    if metric == "flops":
        yield from _causal(terms)
        yield from _rules(terms)
        what = "the embedding is counted as a matrix product"
        yield added(terms, "embedding as a GEMM", "embedding", what, "embedding")
    what = "one decode step is counted in place of all"
    yield changed(terms, "one decode step", "steps", what, lambda i: "N" in i.values, N="1")
    yield from _experts(terms)
    gate = times(terms, lambda i: i.part == "gate", 0) | times(terms, lambda i: i.part == "experts", Fraction(2, 3))
    yield Effect("gate matrix missing", "gate", "MLPs have two matrices, the gate is left out", gate)


def _head(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    def head(i: ClaimTerm) -> bool:
        return i.part == "lm_head"

    def of_prompt(i: ClaimTerm) -> bool:
        return head(i) and "L" in i.values

    yield without(terms, "lm_head missing", "lm_head", "the output projection is left out", head)
    if any(map(head, terms)):
        what = "nothing but the output projection is counted"
        yield without(terms, "lm_head only", "only", what, lambda i: i.counted and not head(i))
    if metric in STAGE_WIDE:
        return
    half = times(terms, head, Fraction(1, 2))
    yield Effect("lm_head halved", "lm_head", "the output projection is counted as multiply-accumulates", half)
    last = scaled(terms, of_prompt, lambda i: Fraction(1, i.values["L"]))
    yield Effect("lm_head last token", "lm_head", "the output projection maps the last position alone", last)
    every = scaled(terms, of_prompt, lambda i: Fraction(i.values["S"], i.values["L"]))
    yield Effect("lm_head all tokens", "lm_head", "the output projection maps every position", every)


def _causal(terms: ClaimTerms) -> Iterator[Effect]:
    def scores(i: ClaimTerm, *needed: str) -> bool:
        return i.part == i.owner == "attention" and i.products and set(needed) <= i.values.keys()

    forms = {
        "causal triangle": ("S (S + 1) / 2", lambda i: Fraction(i.values["S"] + 1, 2 * i.values["S"])),
        "causal half": ("S² / 2", lambda i: Fraction(1, 2)),
        "causal 1.8": ("S² / 1.8", lambda i: Fraction(5, 9)),
    }
    for cause, (form, factor) in forms.items():
        what = f"of the scores of causal attention {form} are counted"
        yield Effect(cause, "attention", what, scaled(terms, lambda i: scores(i, "S"), factor))
    # Fewer steps and less context do not multiply: each has another form beside the other.
    one = "one decode step"
    for cause, what, seen in (
        ("context attention missing", "decode steps attend to the new token alone", lambda i: 1),
        ("decode context frozen", "every decode step attends to the prompt alone", lambda i: i.values["P"]),
        ("decode context of the last step", "every decode step attends to as much as the last one", _longest),
    ):

        def several(i: ClaimTerm, seen: Callable[[ClaimTerm], int] = seen) -> Fraction:
            return Fraction(i.values["N"] * seen(i), keys(i))

        def single(i: ClaimTerm, seen: Callable[[ClaimTerm], int] = seen) -> Fraction:
            return Fraction(seen(i), i.values["P"] + 1)

        steps = partial(scaled, terms, lambda i: scores(i, "N", "P"))
        yield Effect(cause, "attention", what, steps(several), excludes=(one,))
        yield Effect(cause, "attention", what, steps(single), requires=one)
    for cause, what, more in (
        ("new token not attended to", "a decode step does not attend to its own token", -1),
        ("new token attended to twice", "a decode step attends to one token more than there are", 1),
    ):

        def moved(i: ClaimTerm, more: int = more) -> Fraction:
            return 1 + Fraction(more * i.values["N"], keys(i))

        yield Effect(cause, "attention", what, scaled(terms, lambda i: scores(i, "N", "P"), moved), excludes=(one,))


def _longest(term: ClaimTerm) -> int:
    return term.values["P"] + term.values["N"]


def keys(term: ClaimTerm) -> int:
    """Keys that N steps attend to: P + 1, P + 2, ..."""
    steps, past = term.values["N"], term.values["P"]
    return steps * past + steps * (steps + 1) // 2


def _rules(terms: ClaimTerms) -> Iterator[Effect]:
    for name, what in RULES:
        replaced = times(terms, lambda i: i.text and not i.stands_for.startswith("2ND"), 0)
        every = switched(terms, f"2ND {name}")
        yield Effect(f"2ND: {name}", "rule", f"2 N D with N = {what}", replaced, every)
        beside = {i: f for i, f in replaced.items() if not terms[i].scores}
        what = f"2 N D with N = {what}, and scores and weighted sums of attention"
        if beside != replaced:
            yield Effect(f"2ND and attention: {name}", "rule", what, beside, every)


def _experts(terms: ClaimTerms) -> Iterator[Effect]:
    def routed(i: ClaimTerm) -> bool:
        return i.part == "experts"

    def shared(i: ClaimTerm) -> bool:
        return i.within("shared")

    each = "each token passes"
    yield changed(terms, "top-k missing", "routing", f"{each} one routed expert", routed, topk="1", experts="1")
    yield changed(terms, "all experts", "routing", f"{each} every expert", routed, topk="experts")
    what = "of the experts, the active ones are counted"
    yield changed(terms, "active experts only", "routing", what, routed, experts="topk")
    yield without(terms, "routed experts missing", "routing", "routed experts are left out", routed)
    what, family = "routed and shared experts are as wide as a dense layer", "expert width"
    yield changed(
        terms, "expert width = dense width", family, what, lambda i: routed(i) or shared(i), moe="intermediate"
    )
    what = "routed experts are as wide as a dense layer"
    yield changed(terms, "routed width = dense width", family, what, routed, moe="intermediate")
    yield without(terms, "shared experts missing", "shared", "shared experts are left out", shared)
    what = "one shared expert is counted in place of all"
    yield changed(terms, "one shared expert", "shared", what, shared, shared="1")
    what = "there are so many shared experts for each routed one"
    yield changed(terms, "shared experts times top-k", "shared", what, shared, shared="topk*shared")
    yield without(terms, "router missing", "router", "the router is left out", lambda i: i.part == "router")
    mixture = times(terms, lambda i: i.mixture, 0)
    what = "layers with experts are counted as dense layers"
    yield Effect("MoE as a dense FFN", "layers", what, mixture, switched(terms, "dense for mixture"))
    dense = {id(i) for i in dense_terms(terms)}
    gone = times(terms, lambda i: id(i) in dense, 0)
    what = "every layer is taken to have experts"
    every = switched(terms, "mixture for dense")
    yield Effect("dense-first ignored", "layers", what, gone, every)
    what = "every layer has the routed experts alone, each as wide as a dense layer"
    wide = scaled(terms, routed, lambda term: put(term, moe="intermediate"))
    yield Effect("dense MLPs as experts", "layers", what, {**gone, **times(terms, shared, 0), **wide}, every)
