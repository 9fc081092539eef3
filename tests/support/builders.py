"""Small captures made by hand: a decoder of four layers with attention and a linear, and its lm_head.

One page of numbers, so that every expected value in the tests can be worked out on paper:

- width d = 8, heads h = 2, vocabulary v = 10, batch B = 2, prompt S = 3;
- ``layers.i.attn`` runs a linear ``2*B*S*d*d = 2*2*3*8*8 = 768`` and attention ``4*B*S*S*d = 4*2*9*8 = 576``;
- ``layers.i.norm`` runs a norm: vector ``7*B*S*d + 2*B*S = 336 + 12 = 348``, parameters ``2*d = 16``;
- ``lm_head`` runs a linear ``2*B*L*d*v = 2*2*3*8*10 = 960``, parameters ``d*v = 80``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import Conventions, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Invocation, TargetInfo, Workload

CONFIG = {"text_hidden": 8, "text_heads": 2, "text_vocab": 10, "text_intermediate": 16}
SIZES = {"B": 2, "S": 3, "L": 3, "b": 2}
LAYERS = 4
METRICS: tuple[Metric, ...] = ("params", "calls", "flops", "vector_flops")

LINEAR, ATTENTION, NORM_VECTOR, NORM_PARAMS, HEAD, HEAD_PARAMS = 768, 576, 348, 16, 960, 80


def node(
    module: str,
    kind: str,
    metric: Metric,
    value: int | None,
    expr: str | None = None,
    *,
    stage: str = "prefill",
    invocation: str = "prompt",
    owner: str = "",
) -> CostNode:
    """A node with one metric."""
    return CostNode(stage, invocation, module, kind, {metric: value}, {metric: expr} if expr else {}, owner)


def analytic() -> Ledger:
    """The formulas, in symbols of the configuration and the workload."""
    nodes = []
    for i in range(LAYERS):
        attn, norm = f"layers.{i}.attn", f"layers.{i}.norm"
        nodes += [
            node(attn, "linear", "flops", LINEAR, "2*B*S*text_hidden**2", owner="linear"),
            node(attn, "attention", "flops", ATTENTION, "4*B*S**2*text_hidden", owner="attention"),
            node(attn, "", "calls", 1, "1", owner="attention"),
            node(norm, "norm", "vector_flops", NORM_VECTOR, "7*B*S*text_hidden + 2*B*S", owner="layer_norm"),
            node(norm, "", "calls", 1, "1", owner="layer_norm"),
            node(norm, "", "params", NORM_PARAMS, "2*text_hidden", invocation="", owner="layer_norm"),
        ]
    nodes += [
        node("lm_head", "linear", "flops", HEAD, "2*B*L*text_hidden*text_vocab", owner="lm_head"),
        node("lm_head", "", "calls", 1, "1", owner="lm_head"),
        node("lm_head", "", "params", HEAD_PARAMS, "text_hidden*text_vocab", invocation="", owner="lm_head"),
    ]
    return Ledger("analytic", tuple(nodes), METRICS, ("prefill",))


def static() -> Ledger:
    """An export: its own operator names, symbols of the workload, the configuration in numbers."""
    nodes = []
    for i in range(LAYERS):
        attn, norm = f"layers.{i}.attn", f"layers.{i}.norm"
        nodes += [
            node(attn, "aten.linear", "flops", LINEAR, "128*B*S"),
            node(attn, "aten.scaled_dot_product_attention", "flops", ATTENTION, "32*B*S**2"),
            node(attn, "", "calls", 1, "1"),
            node(norm, "aten.layer_norm", "vector_flops", NORM_VECTOR, "58*B*S"),
            node(norm, "", "calls", 1, "1"),
            node(norm, "", "params", NORM_PARAMS, "16", invocation=""),
        ]
    nodes += [
        node("lm_head", "aten.mm", "flops", HEAD, "160*B*S"),
        node("lm_head", "", "calls", 1, "1"),
        node("lm_head", "", "params", HEAD_PARAMS, "80", invocation=""),
    ]
    return Ledger("static", tuple(nodes), METRICS, ("prefill",))


def dynamic() -> Ledger:
    """A trace: its own operator names, numbers alone."""
    spelled = {
        "aten.linear": "linear",
        "aten.scaled_dot_product_attention": "scaled_dot_product_attention",
        "aten.layer_norm": "layer_norm",
        "aten.mm": "__matmul__",
    }
    nodes = [replace(n, kind=spelled.get(n.kind, n.kind), exprs={}) for n in static().nodes]
    return Ledger("dynamic", tuple(nodes), METRICS, ("prefill",))


def capture(ledgers: Sequence[Ledger] | None = None) -> Capture:
    """All three sources in agreement, unless ``ledgers`` says otherwise."""
    return Capture(
        conventions=Conventions(),
        target=TargetInfo("toy", "native", "0" * 12, dict(CONFIG), ("prefill",)),
        workload=Workload("toy", text_tokens=3, batch=2),
        environment={"costproof": "0"},
        invocations=(Invocation("prefill", "prompt", 1, dict(SIZES), ()),),
        ledgers=tuple(ledgers) if ledgers is not None else (analytic(), static(), dynamic()),
    )


def edited(ledger: Ledger, where: Callable[[CostNode], bool], **changes: object) -> Ledger:
    """The ledger with the picked nodes changed; ``drop=True`` takes them out."""
    drop = bool(changes.pop("drop", False))
    nodes = []
    for n in ledger.nodes:
        if not where(n):
            nodes.append(n)
        elif not drop:
            nodes.append(replace(n, **changes))  # type: ignore[arg-type]
    return replace(ledger, nodes=tuple(nodes))


def at(module: str, kind: str | None = None, metric: Metric | None = None) -> Callable[[CostNode], bool]:
    """Picks nodes by module, kind and metric."""
    return lambda n: n.module == module and (kind is None or n.kind == kind) and (metric is None or metric in n.costs)
