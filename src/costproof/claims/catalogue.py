"""The mistakes that the search knows, each as a transformation whose size follows from the truth's own nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

from costproof.claims import decoder_mistakes, vision_mistakes
from costproof.claims.effects import Effect, put, scaled, switched, times
from costproof.claims.items import NORMS, Item
from costproof.ledger.metrics import STAGE_WIDE, Metric


def effects(items: tuple[Item, ...], metric: Metric) -> tuple[Effect, ...]:
    """All causes that can change this claim; those that do exactly the same are one, with the other names beside."""
    merged: dict[tuple[object, ...], Effect] = {}
    for effect in _all(items, metric):
        factors = {i: f for i, f in effect.factors.items() if f != 1 and items[i].value}
        switches = frozenset(i for i in effect.switches if items[i].value and factors.get(i) != 0)
        if not switches and not factors:
            continue
        slim = replace(effect, factors=factors, switches=switches)
        # What is off and stays off cannot tell two causes apart.
        key = (frozenset((i, f) for i, f in factors.items() if items[i].on or i in switches), switches, effect.needs)
        if key in merged:
            kept = merged[key]
            merged[key] = replace(kept, or_else=(*kept.or_else, slim.cause))
        else:
            merged[key] = slim
    return tuple(merged.values())


def stated(items: tuple[Item, ...], metric: Metric, conventions: Mapping[str, str]) -> tuple[Effect, ...]:
    """The causes that a claim states itself as its conventions."""
    names = {STATED[k, v] for k, v in conventions.items() if STATED.get((k, v))}
    return tuple(e for e in effects(items, metric) if e.cause in names or names & set(e.or_else))


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
    ("window_padding", "counted"): "",
    ("window_padding", "left out"): "window padding missing",
    ("attention_scores", "left out"): "attention missing",
    ("norms", "counted"): "norms counted",
}
"""(convention, value) -> the cause that it is, or nothing where it is ours."""


READINGS: frozenset[str] = frozenset(
    {"mac", "causal triangle", "causal half", "lm_head last token", "lm_head all tokens"}
)
"""Ways to count the same work. Every other cause adds work, leaves some out, or changes the model or its run."""


def of_run(cause: str) -> bool:
    """Whether a cause says what was run, not how it was counted."""
    return cause.startswith("view ") or cause in ("one crop", "one decode step")


def _all(items: tuple[Item, ...], metric: Metric) -> Iterator[Effect]:
    flops = metric == "flops"
    if flops:
        yield from _units(items)
    yield from decoder_mistakes.effects(items, metric)
    if metric not in STAGE_WIDE:
        yield from vision_mistakes.effects(items, metric)
        yield from _views(items)
    yield from _sizes(items)
    if flops:
        yield from _flops_only(items)
    else:
        yield from _parameters(items)


def _units(items: tuple[Item, ...]) -> Iterator[Effect]:
    half = times(items, lambda i: i.products, Fraction(1, 2))
    yield Effect("mac", "unit", "a multiply-accumulate is counted as one", half, frozenset())
    twice = times(items, lambda i: True, 2)
    yield Effect("doubled", "unit", "everything is counted twice: two operations per FLOP", twice, frozenset())
    lost = times(items, lambda i: i.owner == "attention" and i.products, 0)
    sums = scaled(items, lambda i: i.kind == "einsum", _einsum_of_fvcore)
    yield Effect(
        "fvcore",
        "unit",
        "fvcore's conventions: a multiply-accumulate is one, attention kernels are left out, "
        "a layer norm is 5 per element",
        {**half, **sums, **lost},
        switched(items, "norms at 5"),
    )
    yield Effect("6ND", "training", "three forward passes: forward and backward of training", times(
        items, lambda i: True, 3), frozenset())  # fmt: skip


def _einsum_of_fvcore(item: Item) -> Fraction:
    """Half of numpy's operation count, which is read from a text of four digits."""
    each = item.value / item.count / 2
    rounded = Fraction(f"{int(each):.3e}") / 2 if each.denominator == 1 else each / 2
    return Fraction(int(rounded)) / each


def _flops_only(items: tuple[Item, ...]) -> Iterator[Effect]:
    yield Effect("norms counted", "vector", "norms are counted as FLOPs", {}, switched(items, "norms"))
    yield Effect(
        "vector work counted",
        "vector",
        "norms, softmax, activations, rotary and residuals are counted as FLOPs",
        {},
        switched(items, "norms", "vector"),
    )
    yield Effect("biases counted", "biases", "additions of biases are counted as FLOPs", {}, switched(items, "biases"))
    yield Effect(
        "attention missing",
        "attention",
        "scores and weighted sum of attention are left out",
        times(items, lambda i: i.owner == "attention" and i.products, 0),
        frozenset(),
    )


def _views(items: tuple[Item, ...]) -> Iterator[Effect]:
    calls = sorted({(i.invocation) for i in items if not i.text and i.on})
    for name in calls:
        inside = times(items, lambda i, name=name: not i.text and i.invocation == name, 0)  # type: ignore[misc]
        if len(calls) > 1 or any(i.text for i in items):
            yield Effect(
                f"view missing: {name}", f"view {name}", f"the {name} view is not counted", inside, frozenset()
            )
        twice = dict.fromkeys(inside, Fraction(2))
        yield Effect(f"view twice: {name}", f"view {name}", f"the {name} view is counted twice", twice, frozenset())
    one = scaled(items, lambda i: i.invocation == "crops", lambda i: put(i, {"n": "B"}))
    yield Effect("one crop", "view crops", "one crop is counted in place of all", one, frozenset())


def _sizes(items: tuple[Item, ...]) -> Iterator[Effect]:
    """Dimensions mixed up in the same way for every tower: by the names of its symbols."""
    prefixes = sorted({n.removesuffix("_head_dim") for i in items for n in i.values if n.endswith("_head_dim")})
    for p in prefixes:
        changes = {f"{p}_head_dim": f"{p}_hidden / {p}_heads"}
        factors = scaled(items, lambda i, c=changes: True, lambda i, c=changes: put(i, c))  # type: ignore[misc]
        yield Effect(
            f"head_dim = hidden / heads: {p}", "head_dim", f"{p} heads are taken to be hidden / heads wide",
            factors, frozenset(),
        )  # fmt: skip
        changes = {f"{p}_kv_heads": f"{p}_heads"}
        factors = scaled(items, lambda i, c=changes: True, lambda i, c=changes: put(i, c))  # type: ignore[misc]
        yield Effect(
            f"GQA ignored: {p}", "gqa", "every query head has keys and values of its own", factors, frozenset()
        )


def _parameters(items: tuple[Item, ...]) -> Iterator[Effect]:
    def missing(cause: str, what: str, owners: Iterable[str], *, text: bool | None = None) -> Effect:
        chosen = frozenset(owners)
        factors = times(items, lambda i: i.owner in chosen and text in (None, i.text), 0)
        return Effect(cause, cause, what, factors, frozenset())

    yield missing("embedding missing", "the embedding is left out", ["embedding"], text=True)
    yield missing("norms missing", "norms are left out", NORMS)
    yield missing(
        "position tables missing",
        "position tables are left out",
        ["position_embedding", "class_and_positions", "embedding"],
        text=False,
    )
    yield missing("newline and separator missing", "the tokens between image features are left out", ["image_tokens"])
    yield Effect(
        "biases missing",
        "biases",
        "biases are left out",
        scaled(items, lambda i: i.owner in ("linear", "conv2d", "patch_embedding"), _without_bias),
        frozenset(),
    )
    yield Effect(
        "unexecuted counted", "unexecuted", "parameters are counted that the checkpoint holds and nothing runs",
        {}, switched(items, "unexecuted"),
    )  # fmt: skip


def _without_bias(item: Item) -> Fraction | None:
    from costproof.claims.items import bias_of
    from costproof.ledger.program import compiled

    parts = bias_of(item.expr) if item.expr else None
    if parts is None:
        return None
    weights, bias = (Fraction(compiled(p).run(item.values)) for p in parts)
    return weights / (weights + bias)
