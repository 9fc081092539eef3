"""Mistakes in models of decoders: output projection, embedding, attention, experts."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from costproof.claims.effects import Effect, put, scaled, switched, times
from costproof.claims.items import RULES, Item
from costproof.ledger.metrics import STAGE_WIDE, Metric


def effects(items: tuple[Item, ...], metric: Metric) -> Iterator[Effect]:
    """All of them, whether they change this claim or not."""
    nothing: frozenset[int] = frozenset()
    yield from _head(items, metric)
    if metric == "flops":
        yield from _causal(items)
        yield from _rules(items)
        yield Effect(
            "embedding as a GEMM", "embedding", "the embedding is counted as a matrix product", {},
            switched(items, "embedding"),
        )  # fmt: skip
    if metric not in STAGE_WIDE:
        steps = scaled(items, lambda i: i.stage == "decode", lambda i: put(i, {"N": "1"}))
        yield Effect("one decode step", "steps", "one decode step is counted in place of all", steps, nothing)
    yield from _experts(items)
    gate = times(items, lambda i: i.leaf == "gate_proj", 0)
    gate |= times(items, lambda i: i.owner == "experts", Fraction(2, 3))
    yield Effect("gate matrix missing", "gate", "perceptrons have two matrices, the gate is left out", gate, nothing)


def _head(items: tuple[Item, ...], metric: Metric) -> Iterator[Effect]:
    nothing: frozenset[int] = frozenset()

    def head(i: Item) -> bool:
        return i.owner == "lm_head"

    yield Effect("lm_head missing", "lm_head", "the output projection is left out", times(items, head, 0), nothing)
    others = times(items, lambda i: i.on and not head(i), 0)
    if any(head(i) for i in items):
        yield Effect("lm_head only", "only", "nothing but the output projection is counted", others, nothing)
    if metric in STAGE_WIDE:
        return
    half = times(items, head, Fraction(1, 2))
    yield Effect("lm_head halved", "lm_head", "the output projection is counted as multiply-accumulates", half, nothing)
    last = scaled(items, head, lambda i: Fraction(1, i.values["L"]) if "L" in i.values else None)
    yield Effect("lm_head last token", "lm_head", "the output projection maps the last position alone", last, nothing)
    every = scaled(items, head, lambda i: Fraction(i.values["S"], i.values["L"]) if "L" in i.values else None)
    yield Effect("lm_head all tokens", "lm_head", "the output projection maps every position", every, nothing)


def _causal(items: tuple[Item, ...]) -> Iterator[Effect]:
    nothing: frozenset[int] = frozenset()

    def prompt(i: Item) -> bool:
        return i.owner == "attention" and i.stage == "prefill" and "S" in i.values and i.products

    forms = {
        "causal triangle": ("S (S + 1) / 2", lambda i: Fraction(i.values["S"] + 1, 2 * i.values["S"])),
        "causal half": ("S² / 2", lambda i: Fraction(1, 2)),
        "causal 1.8": ("S² / 1.8", lambda i: Fraction(5, 9)),
    }
    for cause, (form, factor) in forms.items():
        yield Effect(
            cause, "attention", f"of the scores of causal attention {form} are counted",
            scaled(items, prompt, factor), nothing,
        )  # fmt: skip

    def step(i: Item) -> bool:
        return i.owner == "attention" and i.stage == "decode" and i.products and {"N", "P"} <= i.values.keys()

    # Fewer steps and less context do not multiply: each has another form beside the other.
    one = "one decode step"
    for cause, what, keys in (
        ("context attention missing", "decode steps attend to the new token alone", lambda i: 1),
        ("decode context frozen", "every decode step attends to the prompt alone", lambda i: i.values["P"]),
    ):
        several = scaled(items, step, lambda i, k=keys: Fraction(i.values["N"] * k(i), _keys(i)))  # type: ignore[misc]
        yield Effect(cause, "attention", what, several, nothing, bars=(one,))
        single = scaled(items, step, lambda i, k=keys: Fraction(k(i), i.values["P"] + 1))  # type: ignore[misc]
        yield Effect(cause, "attention", what, single, nothing, needs=one)


def _keys(item: Item) -> int:
    """Keys that N steps attend to: P + 1, P + 2, ..."""
    steps, past = item.values["N"], item.values["P"]
    return steps * past + steps * (steps + 1) // 2


def _rules(items: tuple[Item, ...]) -> Iterator[Effect]:
    for name, what in RULES:
        replaced = times(items, lambda i: i.text and not i.extra.startswith("2ND"), 0)
        yield Effect(
            f"2ND: {name}", "rule", f"2 N D with N = {what}", replaced, switched(items, f"2ND {name}")
        )  # fmt: skip


def _experts(items: tuple[Item, ...]) -> Iterator[Effect]:
    nothing: frozenset[int] = frozenset()

    def routed(i: Item) -> bool:
        return i.owner == "experts"

    def both(i: Item) -> bool:
        return i.mixture and i.owner != "router"

    one = scaled(items, routed, lambda i: put(i, {"text_topk": "1", "text_experts": "1"}))
    yield Effect("top-k missing", "routing", "each token passes one routed expert", one, nothing)
    every = scaled(items, routed, lambda i: put(i, {"text_topk": "text_experts"}))
    yield Effect("all experts", "routing", "each token passes every expert", every, nothing)
    few = scaled(items, routed, lambda i: put(i, {"text_experts": "text_topk"}))
    yield Effect("active experts only", "routing", "of the experts, the active ones are counted", few, nothing)
    absent = times(items, routed, 0)
    yield Effect("routed experts missing", "routing", "routed experts are left out", absent, nothing)
    width = {"text_moe": "text_intermediate"}
    yield Effect(
        "expert width = dense width", "expert width", "routed and shared experts are as wide as a dense layer",
        scaled(items, both, lambda i: put(i, width)), nothing,
    )  # fmt: skip
    yield Effect(
        "routed width = dense width", "expert width", "routed experts are as wide as a dense layer",
        scaled(items, routed, lambda i: put(i, width)), nothing,
    )  # fmt: skip
    shared = times(items, lambda i: i.shared and i.mixture, 0)
    yield Effect("shared experts missing", "shared", "shared experts are left out", shared, nothing)
    single = scaled(items, lambda i: i.shared and i.mixture, lambda i: put(i, {"text_shared": "1"}))
    yield Effect("one shared expert", "shared", "one shared expert is counted in place of all", single, nothing)
    router = times(items, lambda i: i.owner == "router", 0)
    yield Effect("router missing", "router", "the router is left out", router, nothing)
    yield Effect(
        "MoE as a dense FFN", "layers", "layers with experts are counted as dense layers",
        times(items, lambda i: i.mixture, 0), switched(items, "dense for mixture"),
    )  # fmt: skip
    yield Effect(
        "dense-first ignored", "layers", "every layer is taken to have experts",
        times(items, lambda i: i.dense, 0), switched(items, "mixture for dense"),
    )  # fmt: skip
