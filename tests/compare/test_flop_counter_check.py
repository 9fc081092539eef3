"""The second judge beside the dynamic source, on hand-made captures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.compare.compare import WITHOUT, compare
from costproof.compare.findings import Judges
from costproof.ledger.capture import Capture, TraceCheck
from costproof.ledger.node import NO_FORMULA, CostNode, Ledger, UnknownOp
from costproof.ledger.run import RunOptions, RunRecord, TracedRun
from tests.support import builders as b


def judge(**other: int) -> Ledger:
    """What torch counts in the builders' capture: attention as two products, all else the same but for ``other``."""
    nodes = []
    for i in range(b.LAYERS):
        attn = f"layers.{i}.attn"
        nodes += [("aten.addmm", attn, other.get("linear", b.LINEAR)), ("aten.bmm", attn, b.ATTENTION)]
    nodes.append(("aten.mm", "lm_head", other.get("head", b.HEAD)))
    return Ledger(
        "dispatcher", tuple(CostNode("prefill", "prompt", m, k, {"flops": v}) for k, m, v in nodes),
        ("flops",), b.capture().target.stages,
    )  # fmt: skip


def judged(ledger: Ledger | None) -> Capture:
    return replace(b.capture(), judge=ledger)


def test_agreement_is_counted_and_changes_nothing() -> None:
    found = compare(judged(judge()))
    assert found.verdict == "exact"
    assert found.judges is not None
    # 4 layers with a linear and an attention, and the head; 4 * (768 + 576) + 960.
    assert (found.judges.agreed, found.judges.flops, found.judges.alone) == (9, 6336, ())
    assert found.findings == compare(b.capture()).findings


def test_a_difference_names_module_operator_and_both_figures() -> None:
    found = compare(judged(judge(head=500)))
    (bad,) = found.select(status="unexplained")
    assert (found.verdict, bad.level) == ("unexplained", "judge")
    assert bad.id == "judge/prefill[prompt]/lm_head:linear#flops"
    assert bad.values == {"dynamic": 960, "dispatcher": 500}
    assert (bad.delta, bad.residual, bad.reference) == (460, 460, "dispatcher")
    (bad,) = compare(judged(judge(linear=700))).select(status="unexplained")
    assert (bad.module, bad.count, bad.values) == ("layers.[0-3].attn", 4, {"dynamic": 4 * 768, "dispatcher": 2800})


def test_a_composite_is_the_work_of_its_parts() -> None:
    # lstm in one place, two products in the other: right only if they add up.
    def with_lstm(flops: int) -> Capture:
        node = CostNode("prefill", "prompt", "rnn", "lstm", {"flops": flops})
        beside = CostNode("prefill", "prompt", "rnn", "linear", {"flops": 6})
        dynamic = replace(b.dynamic(), nodes=(*b.dynamic().nodes, node, beside))
        parts = CostNode("prefill", "prompt", "rnn", "aten.mm", {"flops": 30})
        return replace(judged(replace(judge(), nodes=(*judge().nodes, parts))), ledgers=(b.static(), dynamic))

    assert not compare(with_lstm(24)).select(level="judge")
    assert sorted(f.kind for f in compare(with_lstm(25)).select(level="judge")) == ["linear", "lstm"]


def test_an_operator_without_a_rule_is_unknown_and_not_zero() -> None:
    """torch has a formula for ``other_attn._new``; the rules have none, so the two do not differ."""
    unknown = UnknownOp("other_attn._new", "prefill", "lm_head", 1, None, "no rule for this operator")
    own = CostNode("prefill", "prompt", "lm_head", "other_attn._new", {"flops": 887_808})

    def with_judge(nodes: tuple[CostNode, ...]) -> Capture:
        dynamic = replace(b.dynamic(), unknown_ops=(unknown,))
        return replace(judged(replace(judge(), nodes=nodes)), ledgers=(b.static(), dynamic))

    found = compare(with_judge((*judge().nodes, own)))
    assert not found.select(level="judge")
    assert found.judges is not None
    assert found.judges.alone == (
        (
            "other_attn._new in lm_head, prefill: unknown by the rules, which lack an operator there, "
            "887,808 FLOP by torch's formulas"
        ),
    )
    # What the rules count and torch does not is still a difference.
    assert [f.delta for f in compare(with_judge(judge(head=500).nodes)).select(level="judge")] == [460]


def test_where_there_is_one_judge_is_said() -> None:
    unknown = UnknownOp("mylib.fused", "prefill", "lm_head", 1, None, "torch has no formula for this operator")
    lacking = Ledger("dispatcher", judge().nodes[:-1], ("flops",), judge().stages, (unknown,))
    found = compare(judged(lacking))
    assert found.verdict == "exact"
    assert found.judges is not None
    assert found.judges.alone == (
        "operator mylib.fused: 1 call in lm_head, no bound of its FLOPs",
        "matmul in lm_head, prefill: 960 FLOP by the rules, 0 by torch's formulas, which lack an operator there",
    )
    assert compare(judged(None)).judges == Judges(0, 0, (WITHOUT,))


@pytest.mark.parametrize(
    ("rules", "torch", "found", "left", "agreed"),
    [
        # The operator without a formula may be the norm of 50, and is not the linear.
        ({"linear": 200, "aten.linalg_norm": 50}, {"aten.addmm": 100}, {"linear": (200, 100)}, ["linalg_norm 50 0"], 0),
        ({"linear": 100, "aten.linalg_norm": 50}, {"aten.addmm": 130}, {"linear": (100, 130)}, ["linalg_norm 50 0"], 0),
        # Some of its own kind: the other 40 are beside it.
        ({"mylib::fused": 90}, {"mylib::fused": 40}, {}, ["mylib::fused 90 40"], 0),
        # A product of 30 may be a part of what costs 50; one of 60 may not.
        ({"aten.linalg_pinv": 50}, {"aten.mm": 30}, {}, ["linalg_pinv 50 0", "linear 0 30"], 0),
        ({"aten.linalg_pinv": 50}, {"aten.mm": 60}, {"linalg_pinv": (50, 0), "linear": (0, 60)}, [], 0),
        # Beside the norm an attention of 100 is products of 60, in one kind with a linear of 6, and of 40.
        (
            {"attention": 100, "linear": 6, "aten.linalg_norm": 50}, {"aten.addmm": 66, "aten.bmm": 40},
            {}, ["linalg_norm 50 0"], 106,
        ),
    ],
)  # fmt: skip
def test_an_operator_without_a_formula_excuses_its_own_work_alone(
    rules: dict[str, int], torch: dict[str, int], found: dict[str, tuple[int, int]], left: list[str], agreed: int
) -> None:
    unknown = UnknownOp("mylib::fused", "prefill", "odd", 1, None, "torch has no formula for this operator")
    result = compare(_beside(rules, torch, unknown))
    assert {f.kind: (f.values["dynamic"], f.values["dispatcher"]) for f in result.select(level="judge")} == found
    assert result.judges is not None
    assert result.judges.flops == 6336 + agreed
    assert list(result.judges.alone[1:]) == [
        f"{kind} in odd, prefill: {mine} FLOP by the rules, {other} by torch's formulas, which lack an operator there"
        for kind, mine, other in map(str.split, left)
    ]


def _beside(rules: dict[str, int], torch: dict[str, int], *unknown: UnknownOp) -> Capture:
    """The builders' capture with one module more, as our rules and torch count it."""

    def nodes(kinds: dict[str, int]) -> tuple[CostNode, ...]:
        return tuple(CostNode("prefill", "prompt", "odd", kind, {"flops": flops}) for kind, flops in kinds.items())

    dynamic = replace(b.dynamic(), nodes=(*b.dynamic().nodes, *nodes(rules)))
    seen = replace(judge(), nodes=(*judge().nodes, *nodes(torch)), unknown_ops=unknown)
    return replace(judged(seen), ledgers=(b.static(), dynamic))


def test_the_parts_of_a_composite_may_be_of_kinds_that_are_there_already() -> None:
    # An attention of 100 is products of 60 and 40; a linear of 6 and a product of 5 are beside it.
    rules = {"attention": 100, "linear": 6, "matmul": 5}
    assert not compare(_beside(rules, {"aten.addmm": 66, "aten.bmm": 45})).select(level="judge")
    bad = compare(_beside(rules, {"aten.addmm": 66, "aten.bmm": 46})).select(level="judge")
    assert sum((f.delta or 0) for f in bad) == 111 - 112


def test_an_unknown_sum_is_a_difference() -> None:
    nodes = (*judge().nodes[:-1], replace(judge().nodes[-1], costs={"flops": None}))
    (bad,) = compare(judged(replace(judge(), nodes=nodes))).select(level="judge")
    assert (bad.module, bad.delta, bad.values) == ("lm_head", None, {"dynamic": 960, "dispatcher": None})


def test_an_expert_that_costs_more_a_row_is_named() -> None:
    # 64 FLOPs a row in three experts; the fourth, with 2 rows, 100 a row.
    run = TracedRun("prompt", None, 0, 0, 0, 0, 0, {"l.experts": (3, 0, 1, 1, 2)}, {"l.experts": (192, 0, 64, 64, 200)})
    capture = replace(judged(judge()), run=RunRecord(RunOptions(), (), (run,)), callgraph=b.capture().callgraph)
    from costproof.compare.totals import uneven_experts

    (bad,) = uneven_experts(capture)
    assert (bad.id, bad.delta) == ("judge/prefill[prompt]/l.experts.4#flops", 200 - 2 * 64)
    assert bad.evidence == ("run prompt: 200 FLOPs, where its rows would cost 128 in most experts beside it",)


def unchecked(found: Capture) -> list[str]:
    return [f.evidence[0] for f in compare(found).findings if f.stage == "dispatcher"]


def test_a_run_without_its_checks_is_a_finding() -> None:
    run = RunRecord(RunOptions().public(), (), ())
    ran = replace(b.capture(), run=run, judge=judge(), trace_check=TraceCheck(1, 0, ()))
    assert (compare(ran).verdict, unchecked(ran)) == ("exact", [])
    silent = "the FLOPs of the traced run are not compared with torch's formulas"
    assert unchecked(replace(ran, judge=None)) == [silent]
    assert unchecked(replace(ran, judge=replace(judge(), metrics=()))) == [silent]
    assert unchecked(replace(ran, judge=replace(judge(), stages=()))) == ["torch's formulas do not count prefill"]
    assert unchecked(replace(ran, trace_check=None)) == ["calls of the traced run are not compared with those of hooks"]
    ignored = (UnknownOp("aten.mm", "prefill", "lm_head", 1, None, NO_FORMULA),)
    assert unchecked(replace(ran, judge=replace(judge(), unknown_ops=ignored))) == [
        "torch has a formula for aten.mm, which the second judge does not use"
    ]
    assert compare(replace(ran, judge=None)).verdict == "unexplained"


@pytest.mark.parametrize("resident", [17, 16, 12])
def test_resident_bytes_are_parameters_and_buffers(resident: int) -> None:
    costs: dict[str, int | None] = {"weight_bytes": 12, "buffer_bytes": 5, "resident_bytes": resident}
    more: Ledger = b.static()
    more = replace(
        more, nodes=(*more.without(costs).nodes, CostNode("prefill", "", "held", "", costs)),
        metrics=tuple(dict.fromkeys((*more.metrics, *costs))),
    )  # fmt: skip
    capture = replace(b.capture(), ledgers=(more, b.dynamic()))

    def said(found: Capture) -> list[str]:
        return [f.id for f in compare(found).findings if f.id == "static#resident_bytes"]

    assert said(capture) == ([] if resident == 17 else ["static#resident_bytes"])
    assert not said(replace(capture, target=replace(capture.target, quantised={"weights": "gptq"})))
