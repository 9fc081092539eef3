"""Mistakes in models of vision towers and of what joins them to the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import sympy

from costproof.claims.effects import Effect, put, rewritten, scaled, times
from costproof.claims.items import Item, symbols
from costproof.ledger.metrics import Metric

_STRIDE = 2
_MERGED = _STRIDE**4
"""Patches that two convolutions of stride 2 make one feature."""


def effects(items: tuple[Item, ...], metric: Metric) -> Iterator[Effect]:
    """All of them, whether they change this claim or not."""
    nothing: frozenset[int] = frozenset()

    def windowed(i: Item) -> bool:
        return "sam_window" in symbols(i.expr)

    whole = scaled(items, windowed, lambda i: put(i, {"sam_window": "H / sam_patch"}))
    yield Effect("windows as full attention", "window", "window layers attend to the whole view", whole, nothing)
    bare = scaled(items, windowed, lambda i: rewritten(i, _without_padding))
    yield Effect("window padding missing", "window", "windows are not padded", bare, nothing)
    relative = times(items, lambda i: i.owner == "relative_position" and i.products, 0)
    yield Effect("relative positions missing", "relative", "relative position terms are left out", relative, nothing)
    patches = times(items, lambda i: i.owner == "patch_embedding", 0)
    yield Effect("patch convolution missing", "patch", "the patch embedding is left out", patches, nothing)
    neck = times(items, lambda i: i.owner == "conv2d", 0)
    yield Effect("convolutions missing", "neck", "neck and downsampling convolutions are left out", neck, nothing)
    merged = times(items, lambda i: i.owner == "conv2d" and "sam_down1" in symbols(i.expr), _STRIDE**2)
    merged |= times(items, lambda i: i.owner == "conv2d" and "sam_down2" in symbols(i.expr), _MERGED)
    yield Effect(
        "merger on patches", "neck", "the convolutions that merge patches give one result for every patch",
        merged, nothing,
    )  # fmt: skip
    classless = scaled(items, lambda i: i.stage == "clip", lambda i: rewritten(i, _without_class))
    yield Effect("class token missing", "class", "the class token is forgotten", classless, nothing)
    yield from _projector(items, metric)


def _without_padding(expr: sympy.Expr) -> sympy.Expr:
    return expr.replace(sympy.ceiling, lambda inside: inside)


def _without_class(expr: sympy.Expr) -> sympy.Expr:
    """One token less wherever tokens are counted as features + 1."""
    tokens = [
        a for a in expr.atoms(sympy.Add)
        if a.has(sympy.Symbol("H", integer=True, positive=True)) and a.as_coeff_Add()[0] == 1
    ]  # fmt: skip
    return expr.xreplace({a: a - 1 for a in tokens})


def _projector(items: tuple[Item, ...], metric: Metric) -> Iterator[Effect]:
    nothing: frozenset[int] = frozenset()

    def projection(i: Item) -> bool:
        return i.stage == "projector" and i.owner == "linear"

    if metric != "flops":
        return
    yield Effect(
        "projector on patches", "projector", "the projector works on the patches before they are merged",
        times(items, projection, _MERGED), nothing,
    )  # fmt: skip
    yield Effect(
        "projector with class token", "projector", "the projector works on a class token too",
        scaled(items, projection, lambda i: 1 + 1 / _features(i)), nothing,
    )  # fmt: skip
    counted = sum(i.values["n"] * _features(i) for i in items if i.on and projection(i))
    # The prompt holds the tokens of all views: with others it would be another prompt.
    calls = sorted({i.invocation for i in items if projection(i)})
    views = ("one crop", *(f"view {how}: {call}" for how in ("missing", "twice") for call in calls))
    for name, what in (("V", "vision tokens, newlines and separator among them"), ("S", "tokens of the whole prompt")):
        yield Effect(
            f"projector on {name}", "projector", f"the projector works on the {what}",
            scaled(items, projection, lambda i, name=name: (  # type: ignore[misc]
                i.values["B"] * i.values[name] / counted if name in i.values and counted else None
            )),
            nothing, bars=views,
        )  # fmt: skip


def _features(item: Item) -> Fraction:
    """Features of one view."""
    side = Fraction(item.values["H"], item.values["sam_patch"])
    return side**2 / _MERGED
