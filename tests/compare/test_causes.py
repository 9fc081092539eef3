"""Stated conventions explain exactly what they should, and nothing without being stated."""

from __future__ import annotations

from dataclasses import replace

from costproof.compare.compare import compare
from costproof.compare.findings import Finding
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Invocation
from tests.support import builders as b


def judge(
    mine: int,
    theirs: int,
    *,
    module: str = "attn",
    kind: str = "attention",
    metric: Metric = "flops",
    stage: str = "prefill",
    sizes: dict[str, int] | None = None,
    role: str = "",
    expr: str | None = None,
    common: str = "all",
    **conventions: str,
) -> Finding:
    """The finding on one number of analytic (with conventions) against static (with an expression) and dynamic."""
    numbers = {"analytic": mine, "static": theirs, "dynamic": theirs}
    ledgers = tuple(
        Ledger(
            source,
            (
                CostNode(
                    stage,
                    "prompt",
                    module,
                    kind,
                    {metric: value},
                    {metric: expr} if expr and source == "static" else {},
                    role=role if source == "analytic" else "",
                ),
            ),
            (metric,),
            (stage,),
            conventions=conventions if source == "analytic" else {},
        )
        for source, value in numbers.items()
    )
    capture = b.capture(ledgers)
    d = compare(
        replace(
            capture,
            conventions=replace(capture.conventions, logits=common),
            target=replace(capture.target, stages=(stage,)),
            invocations=(Invocation(stage, "prompt", 1, sizes or dict(b.SIZES), ()),),
        )
    )
    (finding,) = d.select(level="module")
    return finding


def test_causal_triangle() -> None:
    # S = 3: the triangle has 6 of 9 scores, so 576 FLOPs are 384.
    finding = judge(384, 576, causal="triangle")
    assert (finding.status, finding.delta, finding.residual) == ("explained", -192, 0)
    assert [(c.kind, c.amount) for c in finding.causes] == [("convention", -192)]
    assert judge(384, 576).status == "unexplained"
    assert judge(384, 576, kind="linear", causal="triangle").status == "unexplained"


def test_triangle_of_mac() -> None:
    # Both at once: 384 FLOPs of the triangle are 192 MACs; +192 for the unit, +192 for the square.
    finding = judge(192, 576, causal="triangle", unit="mac")
    assert (finding.status, finding.residual) == ("explained", 0)
    assert [c.amount for c in finding.causes] == [-192, -192]


def test_logits_of_all_positions_where_the_last_is_counted() -> None:
    # S = 3: 960 FLOPs are 320 a position.
    finding = judge(960, 320, module="out", kind="linear", role="lm_head", common="last", logits="all")
    assert (finding.status, finding.delta, finding.residual) == ("explained", 640, 0)
    assert [(c.kind, c.amount) for c in finding.causes] == [("convention", 640)]
    for other in (961, 962):  # rounded down, a third of each is 320; no whole number of FLOPs a position is
        finding = judge(other, 320, module="out", kind="linear", role="lm_head", common="last", logits="all")
        assert (finding.status, finding.residual) == ("unexplained", other - 320)


def test_bytes_of_a_dtype_are_no_fraction_of_bytes() -> None:
    assert judge(1152, 576, kind="", metric="output_bytes", dtype="float32").status == "explained"
    assert judge(1153, 576, kind="", metric="output_bytes", dtype="float32").status == "unexplained"


def test_last_logits() -> None:
    finding = judge(320, 960, module="out", kind="linear", role="lm_head", logits="last")
    assert (finding.status, finding.delta) == ("explained", -640)
    assert judge(320, 960, module="out", kind="linear", role="lm_head").status == "unexplained"
    assert judge(320, 960, module="lm_head", kind="linear", role="projector", logits="last").status == "unexplained"


def test_bytes_of_another_dtype() -> None:
    finding = judge(400, 200, kind="", metric="output_bytes", dtype="float32")
    assert (finding.status, finding.delta) == ("explained", 200)
    assert judge(400, 200, dtype="float32").status == "unexplained"


def test_window_padding() -> None:
    # 640 pixels / 16 = 40 positions, windows of 14 pad to 42: 42 * 42 * 100 against 40 * 40 * 100.
    sizes, expr = {"H": 640, "w": 14, "p": 16}, "100*(w*ceiling(H/(p*w)))**2"
    stated = judge(160_000, 176_400, kind="linear", stage="tower", sizes=sizes, expr=expr, window_padding="left out")
    assert [(c.kind, c.amount) for c in stated.causes] == [("padding", -16_400)]
    assert (stated.status, stated.residual) == ("explained", 0)
    assert judge(160_000, 176_400, kind="linear", stage="tower", sizes=sizes, expr=expr).status == "unexplained"
    wrong = judge(160_001, 176_400, kind="linear", stage="tower", sizes=sizes, expr=expr, window_padding="left out")
    assert (wrong.status, wrong.residual) == ("unexplained", -16_399)
    unknown = judge(160_000, 176_400, kind="linear", stage="tower", sizes=sizes, window_padding="left out")
    assert (unknown.status, unknown.residual) == ("unexplained", -16_400)


def test_a_loop_over_experts_calls_what_is_in_it_for_each_expert_that_ran() -> None:
    """4 experts, of which 3 received tokens: three calls of the activation where one kernel has one."""

    def calls(mine: int, role: str = "body.layer.experts.activation", **conventions: str) -> Finding:
        sizes = {"body_experts": 4, "S": 3}
        return judge(mine, 1, module="x", kind="", metric="calls", sizes=sizes, role=role, **conventions)

    looped = calls(3, expert_kernel="eager")
    assert [(c.kind, c.amount, c.accepted) for c in looped.causes] == [("expert_kernel", 2, True)]
    assert calls(5, expert_kernel="eager").status == "unexplained"
    assert calls(3).status == "unexplained"
    assert calls(3, "body.layer.mlp.activation", expert_kernel="eager").status == "unexplained"


def test_counter_that_counts_other_invocations() -> None:
    assert judge(0, 576, invocations="prefill[other]").status == "explained"
    assert judge(0, 576, invocations="prefill[prompt]").status == "unexplained"
    assert judge(0, 576).status == "unexplained"


def test_a_convention_explains_only_what_it_is_worth() -> None:
    # 100 MACs are 200 FLOPs; 50 of 250 stay.
    finding = judge(100, 250, unit="mac")
    assert (finding.delta, finding.residual, finding.status) == (-150, -50, "unexplained")
    assert [(c.kind, c.amount, c.accepted) for c in finding.causes] == [
        ("convention", -100, True),
        ("formula_term", -50, False),
    ]
