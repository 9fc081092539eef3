"""What a claim is made of: the truth's cost nodes in groups that the causes act on.

An item is a group of equal nodes of one metric. It is *on* when the truth counts it. Items that are
off stand for what a wrong model may count instead: the embedding as a matrix product, norms, biases,
dense layers in place of experts. A cause switches items on and multiplies their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import sympy

from costproof.claims.types import TOTAL, Claim
from costproof.compare.patterns import matches, patterns, template
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, bearing, total
from costproof.ledger.program import compiled
from costproof.ledger.symbols import parse

TEXT = frozenset({"prefill", "decode"})
NORMS = frozenset({"layer_norm", "rms_norm"})


@dataclass(frozen=True, slots=True)
class Item:
    """Equal nodes of one metric, or what a wrong model counts in addition."""

    stage: str
    invocation: str
    pattern: str
    leaf: str
    owner: str
    kind: str
    value: Fraction
    """Sum over the nodes."""
    expr: str
    """Symbols that the value is proportional to: the cost of one node; empty where there is none."""
    values: Mapping[str, int]
    """Values of the symbols here."""
    count: int
    evidence: tuple[str, ...]
    on: bool = True
    extra: str = ""
    """What an item that is off stands for."""
    products: bool = True
    """Whether the value counts multiply-accumulates, so that a unit of MAC halves it."""

    @property
    def shared(self) -> bool:
        """Part of the experts that every token passes."""
        return "shared" in self.pattern

    @property
    def text(self) -> bool:
        """Part of the decoder."""
        return self.stage in TEXT

    @property
    def dense(self) -> bool:
        """A matrix of a dense perceptron in a decoder that also has experts."""
        return self.owner == "linear" and self.text and "text_intermediate" in symbols(self.expr)

    @property
    def mixture(self) -> bool:
        """Part of a mixture of experts: routed, shared or router."""
        return self.text and (self.owner in ("experts", "router") or (self.owner == "linear" and self.shared))


@lru_cache(maxsize=16384)
def symbols(expr: str) -> frozenset[str]:
    """Names of the symbols of an expression; none for an empty text."""
    return compiled(expr).symbols if expr else frozenset()


def in_scope(node: CostNode, claim: Claim) -> bool:
    """Whether a claim is about a node."""
    return (
        (claim.stage in (TOTAL, node.stage))
        and (not claim.invocation or node.invocation in ("", claim.invocation))
        and (not claim.module or matches(node.module, claim.module))
    )


def nodes_of(ledger: Ledger, claim: Claim, metric: Metric) -> list[CostNode]:
    """The nodes that a claim is about; a module of two stages once, where the metric belongs to the module."""
    return [n for n in bearing((n for n in ledger.nodes if in_scope(n, claim)), metric) if n.cost(metric) != 0]


def items_of(capture: Capture, ledger: Ledger, claim: Claim) -> tuple[Item, ...]:
    """All items of a claim: what the truth counts, and what a wrong model may."""
    values = _values(capture)
    nodes = nodes_of(ledger, claim, claim.metric)
    real = _grouped(nodes, claim.metric, values)
    extras: list[Item] = []
    if claim.metric == "flops":
        extras += _norms(ledger, claim, values)
        extras += _embedding(ledger, claim, values)
        extras += _biases(ledger, nodes, values)
        extras += _rules(ledger, claim, values)
    extras += _dense_for_mixture(real) + _mixture_for_dense(real)
    if claim.metric == "params":
        extras += _unexecuted(capture, ledger, claim)
    return (*real, *extras)


def _values(capture: Capture) -> dict[tuple[str, str], dict[str, int]]:
    found = {(i.stage, i.id): capture.values(i) for i in capture.invocations}
    common = dict(capture.target.symbols)
    for name in ("B", "b"):
        seen = {v[name] for v in found.values() if name in v}
        if len(seen) == 1:
            common[name] = seen.pop()
    found["", ""] = common
    prompt = next((v for (stage, _), v in found.items() if stage == "prefill"), {})
    for (stage, _), known in found.items():
        if stage == "projector":
            # A model of the projector may take the tokens of the prompt for its own.
            known.update({name: prompt[name] for name in ("V", "S") if name in prompt})
    return found


def _grouped(
    nodes: Iterable[CostNode], metric: Metric, values: Mapping[tuple[str, str], Mapping[str, int]]
) -> list[Item]:
    groups: dict[tuple[str, str, str, str, str, str, int], list[CostNode]] = {}
    for node in nodes:
        if (one := node.cost(metric)) is None:
            continue  # no truth, and nothing to put beside it
        mask, _ = template(node.module)
        key = (node.stage, node.invocation, mask, node.kind, node.owner, node.exprs.get(metric, ""), one)
        groups.setdefault(key, []).append(node)
    return [
        Item(
            stage=stage,
            invocation=invocation,
            pattern=patterns(n.module for n in members)[0][0],
            leaf=members[0].module.rsplit(".", 1)[-1],
            owner=owner,
            kind=kind,
            value=Fraction(one * len(members)),
            expr=expr,
            values=values.get((stage, invocation), values["", ""]),
            count=len(members),
            evidence=(f"{members[0].id} x {len(members)}" if len(members) > 1 else members[0].id,),
        )
        for (stage, invocation, _, kind, owner, expr, one), members in groups.items()
    ]


def _norms(ledger: Ledger, claim: Claim, values: Mapping[tuple[str, str], Mapping[str, int]]) -> list[Item]:
    """Vector work: norms and the rest; and norms as fvcore counts them, 5 per element of a layer norm."""
    widths = {(n.stage, n.module): n.cost("params") for n in ledger.nodes if n.owner in NORMS and not n.invocation}
    found = []
    for item in _grouped(nodes_of(ledger, claim, "vector_flops"), "vector_flops", values):
        extra = "norms" if item.owner in NORMS else "vector"
        found.append(replace(item, on=False, extra=extra, products=False))
        # Norms of channels-first maps are written out in primitives there, and those fvcore does not know.
        module = item.evidence[0].partition("/")[2].partition(":")[0]
        width = widths.get((item.stage, module))
        if item.owner == "layer_norm" and width and ".neck." not in module:
            channels = width // 2
            rows = item.value / (7 * channels + 2)
            found.append(replace(item, on=False, extra="norms at 5", products=False, value=5 * rows * channels))
    return found


def _embedding(ledger: Ledger, claim: Claim, values: Mapping[tuple[str, str], Mapping[str, int]]) -> list[Item]:
    """The table as a matrix: 2 tokens entries width."""
    found = []
    tables = {(n.stage, n.module): n for n in ledger.nodes if n.owner == "embedding" and n.cost("params")}
    for (stage, module), node in tables.items():
        for (other, invocation), known in values.items():
            if other != stage or stage not in TEXT:
                continue
            at = replace(node, invocation=invocation)
            if in_scope(at, claim):
                tokens = known["B"] * known.get("S", known.get("N", 1))
                found.append(
                    Item(
                        stage, invocation, module, module.rsplit(".", 1)[-1], "embedding", "linear",
                        Fraction(2 * tokens * (node.cost("params") or 0)), "", known, 1, (at.id,),
                        on=False, extra="embedding",
                    )
                )  # fmt: skip
    return found


def _biases(
    ledger: Ledger, nodes: Iterable[CostNode], values: Mapping[tuple[str, str], Mapping[str, int]]
) -> list[Item]:
    """One addition per result of a layer with a bias: FLOPs / (2 weights) results for each bias element."""
    owned = {n.module: n for n in ledger.nodes if n.exprs.get("params") and not n.invocation}
    found = []
    for node in nodes:
        parts = bias_of(owned[node.module].exprs["params"]) if node.module in owned else None
        if parts is None or node.owner not in ("linear", "conv2d", "patch_embedding"):
            continue
        known = values[node.stage, node.invocation]
        weights, bias = (Fraction(compiled(p).run(known)) for p in parts)
        added = Fraction(node.cost("flops") or 0) / (2 * weights) * bias
        # The expression stays that of the products: both grow with the rows, and only ratios are taken of it.
        found.append(replace(node, costs={"flops": int(added)}))
    return [replace(i, on=False, extra="biases", products=False) for i in _grouped(found, "flops", values)]


@lru_cache(maxsize=1024)
def bias_of(expr: str) -> tuple[sympy.Expr, sympy.Expr] | None:
    """Weights and bias in the parameters of a layer: the terms of the highest degree, and the others."""
    terms = sympy.Add.make_args(sympy.expand(parse(expr)))
    degrees = [sympy.Poly(t).total_degree() for t in terms if t.free_symbols]
    if len(terms) != len(degrees) or len(set(degrees)) < 2:
        return None
    top = max(degrees)
    weights = sympy.Add(*(t for t, d in zip(terms, degrees, strict=True) if d == top))
    return weights, sympy.Add(*terms) - weights


def _dense_for_mixture(real: Iterable[Item]) -> list[Item]:
    """What the dense perceptron would cost in the layers that have experts."""
    mixtures = {(i.stage, i.invocation): i.count for i in real if i.owner == "experts" and i.on}
    return [
        replace(i, value=i.value * mixtures[i.stage, i.invocation] / i.count, on=False, extra="dense for mixture")
        for i in real
        if i.dense and (i.stage, i.invocation) in mixtures
    ]


def _mixture_for_dense(real: Iterable[Item]) -> list[Item]:
    """What a mixture of experts would cost in the layers that have a dense perceptron."""
    layers = {(i.stage, i.invocation): i.count for i in real if i.dense}
    return [
        replace(i, value=i.value * layers[i.stage, i.invocation] / i.count, on=False, extra="mixture for dense")
        for i in real
        if i.mixture and (i.stage, i.invocation) in layers
    ]


RULES: tuple[tuple[str, str], ...] = (
    ("all", "all parameters of the decoder"),
    ("all but embedding", "all parameters of the decoder but the embedding"),
    ("active", "active parameters of the decoder"),
    ("active but embedding", "active parameters of the decoder but the embedding"),
)


def _rules(ledger: Ledger, claim: Claim, values: Mapping[tuple[str, str], Mapping[str, int]]) -> list[Item]:
    """2 parameters tokens, for a claim about whole text stages."""
    if claim.module:
        return []
    found = []
    for (stage, invocation), known in values.items():
        if stage not in TEXT or claim.stage not in (TOTAL, stage):
            continue
        owned = [n for n in ledger.nodes if n.stage == stage]
        table = total((n for n in owned if n.owner == "embedding"), "params")
        every, active = total(owned, "params"), total(owned, "params_active")
        if table is None or every is None or active is None:
            continue
        tokens = known["B"] * known.get("S", known.get("N", 1))
        for (name, _), parameters in zip(RULES, (every, every - table, active, active - table), strict=True):
            found.append(
                Item(
                    stage, invocation, "", "", "rule", "", Fraction(2 * tokens * parameters), "", known, 1,
                    (f"{stage}[{invocation}]",), on=False, extra=f"2ND {name}",
                )
            )  # fmt: skip
    return found


def _unexecuted(capture: Capture, ledger: Ledger, claim: Claim) -> list[Item]:
    """Parameters that the checkpoint holds and no formula counts, because nothing runs them."""
    checkpoint = capture.ledger("checkpoint")
    if checkpoint is None:
        return []
    known = {n.module for n in ledger.nodes if n.cost("params")}
    return [
        Item(
            n.stage, "", n.module, n.module.rsplit(".", 1)[-1], "checkpoint", "", Fraction(n.cost("params") or 0), "",
            {}, 1, (f"checkpoint: {n.id}",), on=False, extra="unexecuted",
        )
        for n in nodes_of(checkpoint, claim, "params")
        if n.module not in known
    ]  # fmt: skip
