"""A model small enough to count on paper, captured by three made-up sources.

``sam``: two linear layers 4 -> 4 with bias, on T = (H/16)^2 tokens per view.
``clip``: has parameters and does not run.
``decode``: one attention layer of width 6, three steps at contexts 10, 11, 12; its cache grows by one
token a step.

By hand:
    params      sam 2 x (4*4 + 4) = 40, clip 7, decode 36, total 83
    sam global  n=1, H=64, T=16: 2 layers x 2*1*16*4*4 = 2 x 512 = 1024
    sam crops   n=3, H=32, T=4:  2 layers x 2*3*4*4*4  = 2 x 384 = 768
    decode      step i: 4*B*h*(P+i+1), B=1, h=6: 4*6*(11 + 12 + 13) = 24*36 = 864
    total       1024 + 768 + 864 = 2656
    cache       2 (key, value) * 3 steps * 6 * 2 bytes = 72
"""

from __future__ import annotations

from dataclasses import replace

from costproof.ledger.callgraph import CallGraph, Event, PlainAt, TensorAt
from costproof.ledger.capture import Capture, FormulaDoc, SymbolDoc, TraceCheck
from costproof.ledger.metrics import FVCORE, Conventions, Metric
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.workload import Invocation, TargetInfo, TensorSpec, Workload

STAGES = ("sam", "clip", "decode")
METRICS: tuple[Metric, ...] = (
    "params",
    "weight_bytes",
    "buffer_bytes",
    "calls",
    "flops",
    "weight_read_bytes",
    "output_bytes",
    "kv_cache_bytes",
)
SAM_FLOPS = "H**2*n*sam_hidden**2/128"  # 2 * n * (H/16)^2 * hidden^2
DECODE_FLOPS = "4*B*text_hidden*(N*(P + 1) + N*(N - 1)/2)"
KINDS = {
    "analytic": ("linear", "attention"),
    "static": ("aten.linear", "aten.scaled_dot_product_attention"),
    "dynamic": ("linear", "scaled_dot_product_attention"),
}


def ledger(source: str) -> Ledger:
    """What one source says; only ``dynamic`` has no expressions."""
    linear, attention = KINDS[source]
    nodes: list[CostNode] = []

    def add(
        stage: str,
        call: str,
        module: str,
        kind: str,
        costs: dict[Metric, int | None],
        exprs: dict[Metric, str],
        owner: str,
    ) -> None:
        labels = () if source == "analytic" or not kind else (f"{kind}_{len(nodes)}",)
        nodes.append(CostNode(stage, call, module, kind, costs, {} if source == "dynamic" else exprs, owner, labels))

    for i in (0, 1):
        path = f"sam.layers.{i}.lin"
        add("sam", "", path, "", {"params": 20, "weight_bytes": 40}, {"params": "sam_hidden**2 + sam_hidden"}, "linear")
        for call, flops, out in (("global", 512, 128), ("crops", 384, 96)):
            add("sam", call, path, linear, {"flops": flops}, {"flops": SAM_FLOPS}, "linear")
            costs: dict[Metric, int | None] = {"calls": 1, "weight_read_bytes": 40, "output_bytes": out}
            add("sam", call, path, "", costs, {"output_bytes": "H**2*b*n*sam_hidden/256"}, "linear")
    add("clip", "", "clip.patch", "", {"params": 7, "weight_bytes": 14}, {"params": "clip_width"}, "linear")
    add("decode", "", "text.attn", "", {"params": 36, "weight_bytes": 72}, {"params": "text_hidden**2"}, "attention")
    add("decode", "steps", "text.attn", attention, {"flops": 864}, {"flops": DECODE_FLOPS}, "attention")
    costs = {"calls": 3, "weight_read_bytes": 216, "output_bytes": 36, "kv_cache_bytes": 72}
    add("decode", "steps", "text.attn", "", costs, {"kv_cache_bytes": "2*B*N*b*text_hidden"}, "attention")
    return Ledger(source, tuple(nodes), METRICS, STAGES)


def toy() -> Capture:
    """A capture in which all sources agree."""
    bf16 = "bfloat16"
    return Capture(
        conventions=Conventions(),
        target=TargetInfo(
            "toy",
            "native",
            "0123456789ab",
            {"sam_hidden": 4, "clip_width": 7, "text_hidden": 6},
            STAGES,
            {"auto_map": "names code only"},
        ),
        workload=Workload("toy-v1", 2, 3, inputs={"side": 64, "grid": (3, 1)}, what="one picture of 64"),
        environment={"costproof": "0.1.0", "python": "3.12.0", "torch": "2.13.0"},
        invocations=(
            Invocation("sam", "global", 1, {"n": 1, "H": 64, "b": 2}, (TensorSpec((1, 3, 64, 64), bf16),)),
            Invocation("sam", "crops", 1, {"n": 3, "H": 32, "b": 2}, (TensorSpec((3, 3, 32, 32), bf16),)),
            Invocation("decode", "steps", 3, {"B": 1, "P": 10, "N": 3, "b": 2}, (TensorSpec((1, 1), "int64"),)),
        ),
        ledgers=(ledger("analytic"), ledger("static"), ledger("dynamic")),
        formulas={
            "linear": FormulaDoc(
                "Linear layer",
                "Each output element is a dot product of length k:\nk multiplications and k additions, 2k FLOP.",
                "Goodfellow et al., Deep Learning, section 6.1",
            ),
            "attention": FormulaDoc(
                "Attention over a cache",
                "Scores and weighted sum, 2 * h FLOP each per position.",
                "Vaswani et al. 2017",
            ),
        },
        symbols={
            "n": SymbolDoc("n", "views in the invocation"),
            "H": SymbolDoc("H", "side of a view in pixels"),
            "B": SymbolDoc("B", "sequences in the batch"),
            "P": SymbolDoc("P", "tokens in the cache before the first step"),
            "N": SymbolDoc("N", "decode steps"),
            "b": SymbolDoc("b", "bytes per element"),
            "sam_hidden": SymbolDoc(r"h_{\mathrm{sam}}", "width of the SAM encoder"),
            "text_hidden": SymbolDoc(r"h_{\mathrm{text}}", "width of the decoder"),
        },
        callgraph=CallGraph(
            call_counts={"(root)": 4, "sam.layers.0.lin": 2, "sam.layers.1.lin": 2, "text.attn": 3},
            edges={"(root)->sam.layers.0.lin": 2, "(root)->sam.layers.1.lin": 2, "(root)->text.attn": 3},
            op_call_counts={"sam.layers.0.lin": {"linear": 2}},
            module_children={"(root)": ("sam.layers.0.lin", "sam.layers.1.lin", "text.attn")},
            module_types={"(root)": "Toy", "sam.layers.0.lin": "Linear"},
            constructor_params={"sam.layers.0.lin": {"in_features": 4, "bias": True, "eps": 1e-05}},
            input_metadata={"sam.layers.0.lin": (TensorAt((1, 16, 4), bf16, "args[0]"), PlainAt("int", 3, "kwargs.n"))},
            output_metadata={"sam.layers.0.lin": (TensorAt((1, 16, 4), bf16, "output"),)},
            events=(Event(0, "enter", "(root)"), Event(1, "mark", "decode_step", {"step": 1})),
            data_edges={"sam.layers.0.lin->sam.layers.1.lin": 2},
        ),
        trace_check=TraceCheck(4, 3, ()),
    )


def asked() -> Capture:
    """The toy counted in fvcore's convention as well, isolated and extracted: ``asked`` of both what it would say.

    By hand: a linear layer is 512 / 2 and 384 / 2 MACs, its output 16 * 4 and 3 * 4 * 4 elements; attention is
    outside the convention.
    """
    calls = {"global": (256, 64), "crops": (192, 48)}

    def more(source: str) -> Ledger:
        nodes = [
            replace(
                n,
                costs={**n.costs, "fvcore_macs": calls[n.invocation][0], "fvcore_activations": calls[n.invocation][1]},
            )
            if n.kind == "linear"
            else n
            for n in ledger("dynamic").nodes
        ]
        return Ledger(source, tuple(nodes), (*METRICS, *FVCORE), STAGES)

    return replace(toy(), ledgers=(ledger("analytic"), more("dynamic"), more("isolated")))


def with_ledger(capture: Capture, changed: Ledger) -> Capture:
    """The capture with one ledger replaced."""
    return replace(capture, ledgers=tuple(changed if x.source == changed.source else x for x in capture.ledgers))


def wrong() -> Capture:
    """The analytic formula of both linear layers is half of what it should be."""
    made = ledger("analytic")
    nodes = tuple(
        replace(n, costs={"flops": (n.costs["flops"] or 0) // 2}, exprs={"flops": "H**2*n*sam_hidden**2/256"})
        if n.stage == "sam" and n.kind
        else n
        for n in made.nodes
    )
    return with_ledger(toy(), replace(made, nodes=nodes))


def incomplete() -> Capture:
    """The export has an operator without a rule in ``decode``."""
    op = UnknownOp("aten.mystery", "decode", "text.attn", 3, 1000, "no rule for this operator")
    return with_ledger(toy(), replace(ledger("static"), unknown_ops=(op,)))


HOSTILE = "a|b`c<script>alert(1)</script>\n{0}$x$*_[l](http://e.vil)"


def hostile() -> Capture:
    """Names that try to be markup, terminal control and format strings."""
    made = toy()

    def bad(x: Ledger) -> Ledger:
        nodes = tuple(replace(n, module=HOSTILE, owner=HOSTILE) if n.stage == "decode" else n for n in x.nodes)
        return replace(x, nodes=nodes)

    return replace(
        made,
        target=replace(made.target, name=HOSTILE),
        workload=replace(made.workload, name="w\x1b[31m\u202e|", what=HOSTILE),
        ledgers=tuple(bad(x) for x in made.ledgers),
        formulas={HOSTILE: FormulaDoc(HOSTILE, HOSTILE, HOSTILE)},
    )
