"""Mistakes that hide: right at the published sizes, or in the sum. By a generator, and twelve by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import sympy

from costproof.algebra.symbols import parse, sym, text
from costproof.compare.kinds import kind_of
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Workload

DENSE: Final = "text.layer.mlp.up"
SWAPS: Final = (
    ("text_heads", "text_kv_heads"), ("text_kv_heads", "text_heads"), ("clip_heads", "sam_patch"),
    ("sam_patch", "clip_heads"), ("text_hidden", "text_heads*text_head_dim"),
    ("text_head_dim", "text_hidden/text_heads"), ("clip_mlp", "4*clip_hidden"), ("sam_mlp", "4*sam_hidden"),
    ("text_topk", "text_shared"), ("text_shared", "text_topk"), ("clip_hidden", "text_head_dim*8"),
)  # fmt: skip
"""(right, wrong): equal in TINY, or in its default run, or nearly so."""

Place = tuple[str, str, str, str]
"""(stage, role, common kind, metric): what one line of a formula decides, in every layer and call."""


Change = Callable[[CostNode, Ledger, Workload], CostNode]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong formula, in every run in which its parts occur."""

    kind: str
    what: str
    places: frozenset[Place]
    change: Change
    """A node of these places, the ledger that it stands in, and the run -> the wrong node."""

    def planted(self, right: Ledger, run: Workload) -> tuple[Ledger, frozenset[str]]:
        """The formulas of a run with the mistake, and the modules in which they changed."""
        nodes, touched = [], set()
        for node in right.nodes:
            here = any(place(node, metric) in self.places for metric in node.exprs)
            nodes.append(self.change(node, right, run) if here else node)
            if nodes[-1] != node:
                touched.add(node.module)
        return replace(right, nodes=tuple(nodes)), frozenset(touched)


def place(node: CostNode, metric: str) -> Place:
    """Where a cost stands."""
    return node.stage, node.role, kind_of(node.kind) if node.kind else "", metric


def rewritten(at: Place, wrong: Callable[[sympy.Expr], sympy.Expr]) -> Change:
    """A node whose cost of a metric is another expression."""

    def change(node: CostNode, _: Ledger, __: Workload) -> CostNode:
        new = {m: text(wrong(parse(e))) if place(node, m) == at else e for m, e in node.exprs.items()}
        return replace(node, exprs=new)

    return change


def places(ledger: Ledger) -> dict[Place, sympy.Expr]:
    """Every cost in headline and vector FLOPs, bytes of the cache and parameters, with one of its expressions."""
    found: dict[Place, sympy.Expr] = {}
    for node in ledger.nodes:
        for metric, expr in node.exprs.items():
            if metric in ("flops", "vector_flops", "kv_cache_bytes", "params"):
                found.setdefault(place(node, metric), parse(expr))
    return found


def generated(right: Ledger, values: Mapping[str, int]) -> Iterator[Mistake]:
    """Mistakes of every kind at every place that can have them."""
    known = places(right)
    for at, expr in known.items():
        one = frozenset({at})
        names = {s.name for s in expr.free_symbols}
        for old, new in SWAPS:
            if old in names:
                wrong = parse(new)
                yield Mistake("swapped equal sizes", f"{new} for {old}", one, rewritten(at, _put(old, wrong)))
        for name in sorted(names & values.keys())[:3]:
            number = sympy.Integer(values[name])
            yield Mistake("right value, wrong symbol", f"{number} for {name}", one, rewritten(at, _put(name, number)))
            least = sympy.Min(sym(name), number)
            yield Mistake("wrong beyond a threshold", f"{name} up to {number}", one, rewritten(at, _put(name, least)))
        if expr.has(sympy.ceiling):
            yield Mistake("ceiling one off", "floor + 1", one, rewritten(at, _ceiling))
        if at[3] == "vector_flops":
            yield Mistake("another kind of vector work", "another name", one, _renamed(at))
    by_sum: dict[tuple[str, str], list[Place]] = {}
    for at in known:
        by_sum.setdefault((at[0], at[3]), []).append(at)
    for group in by_sum.values():
        for first, second in pairwise(group):
            both = frozenset({first, second})
            if known[first] != known[second]:
                yield Mistake("right sum, wrong place", f"{first[1]} in {second[1]}", both, _moved(first, second))
            yield Mistake("cancelling pair", f"{first[1]} and {second[1]}", both, _cancelling(first, second))


def _put(name: str, wrong: sympy.Expr) -> Callable[[sympy.Expr], sympy.Expr]:
    return lambda expr: expr.subs(sym(name), wrong)


def _ceiling(expr: sympy.Expr) -> sympy.Expr:
    return expr.replace(sympy.ceiling, lambda inside: sympy.floor(inside) + 1)


def _renamed(at: Place) -> Change:
    other = "norm" if at[2] != "norm" else "softmax"
    return lambda node, *_: (
        replace(node, kind=other) if place(node, at[3]) == at and "flops" not in node.exprs else node
    )


def _exprs(ledger: Ledger, node: CostNode, at: Place) -> sympy.Expr:
    """What the place costs in the call and the layer of a node; nothing where it is not there."""
    found = [n.exprs[at[3]] for n in ledger.nodes if n.invocation == node.invocation and at[3] in n.exprs
             and place(n, at[3]) == at]  # fmt: skip
    return parse(found[0]) if found else sympy.Integer(0)


def _moved(first: Place, second: Place) -> Change:
    """Each has the other's cost."""

    def change(node: CostNode, ledger: Ledger, _: Workload) -> CostNode:
        new = dict(node.exprs)
        for here, there in ((first, second), (second, first)):
            if here[3] in new and place(node, here[3]) == here:
                new[here[3]] = text(_exprs(ledger, node, there))
        return replace(node, exprs=new)

    return change


def _cancelling(first: Place, second: Place) -> Change:
    """One has 3 too much, the other 3 too little."""

    def change(node: CostNode, _: Ledger, __: Workload) -> CostNode:
        new = dict(node.exprs)
        for here, more in ((first, 3), (second, -3)):
            if here[3] in new and place(node, here[3]) == here:
                new[here[3]] = text(parse(new[here[3]]) + more)
        return replace(node, exprs=new)

    return change


def by_hand() -> Iterator[Mistake]:
    """Twelve that a report at the default and the proofs of an earlier version did not see."""

    def one(what: str, at: Place, change: Change) -> Mistake:
        return Mistake("by hand", what, frozenset({at}), change)

    def layers_beyond(tower: str) -> Change:
        def change(node: CostNode, _: Ledger, __: Workload) -> CostNode:
            number = next((int(x) for x in node.module.split(".") if x.isdigit()), 0)
            wrong = {m: text(2 * parse(e)) for m, e in node.exprs.items()}
            return replace(node, exprs=wrong) if number >= 12 and node.role.startswith(tower) else node

        return change

    def where(holds: Callable[[Ledger, Workload], bool], change: Change) -> Change:
        return lambda node, ledger, run: change(node, ledger, run) if holds(ledger, run) else node

    def several_dense(ledger: Ledger, _: Workload) -> bool:
        return len({n.module for n in ledger.nodes if n.role == DENSE}) > 1

    def grows_with_heads(expr: sympy.Expr) -> sympy.Expr:
        terms = sympy.Add.make_args(sympy.expand(expr))
        return sympy.Add(
            *(t.subs(sym("text_kv_heads"), sym("text_heads")) if t.has(sym("N") ** 2) else t for t in terms)
        )

    steps, heads = sym("N"), ("prefill", "lm_head", "linear", "flops")
    out: Place = ("prefill", "text.layer.attention.out", "linear", "flops")
    read: Place = ("decode", "text.layer.attention", "", "kv_read_bytes")
    step: Place = ("decode", "text.layer.attention", "attention", "flops")
    scores: Place = ("prefill", "text.layer.attention", "softmax", "vector_flops")
    plain: Place = ("prefill", "text.layer.attention", "elementwise", "vector_flops")
    norm: Place = ("prefill", "text.layer.norm1", "norm", "vector_flops")
    deep = ("prefill", "text.layer.attention.q", "linear", "flops")
    of_sam = ("sam", "sam.layer.attention.qkv", "linear", "flops")
    patches = ("sam", "sam.patches.projection", "conv", "flops")
    clip = ("clip", "clip.layer.attention", "softmax", "vector_flops")
    yield one("o_proj from the width", out, rewritten(out, _put("text_heads", parse("text_hidden/text_head_dim"))))
    yield one("growing context with query heads", read, rewritten(read, grows_with_heads))
    one_more = rewritten(step, lambda expr: expr + steps * (steps - 1))
    yield one("sum over steps, several dense layers", step, where(several_dense, one_more))
    more_logits = rewritten(heads, lambda expr: expr if expr.has(sym("S")) else expr * sym("S"))
    yield one("lm_head on all positions of a text", heads, where(lambda _, run: not run.inputs, more_logits))
    yield one("more than 12 decoder layers", deep, layers_beyond("text"))
    yield one("more than 12 SAM layers", of_sam, layers_beyond("sam"))
    yield one("batch above 8", out, rewritten(out, _put("B", sympy.Min(sym("B"), 8))))
    masked = rewritten(plain, lambda expr: 2 * expr)
    yield one("a mask for FlashAttention", plain, where(lambda _, run: run.attention == "flash_attention_2", masked))
    yield one("softmax called elementwise", scores, lambda n, *_: replace(n, kind="elementwise"))
    yield one("norm called softmax", norm, lambda n, *_: replace(n, kind="softmax"))
    yield one("three channels", patches, rewritten(patches, _put("in_channels", sympy.Integer(3))))
    yield one("heads of CLIP as SAM's patch", clip, rewritten(clip, _put("clip_heads", sym("sam_patch"))))
