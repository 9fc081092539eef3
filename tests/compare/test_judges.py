"""The second judge beside the dynamic source, on hand-made captures."""

from __future__ import annotations

from dataclasses import replace

from costproof.compare.compare import compare
from costproof.compare.judges import WITHOUT
from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.run import RunOptions, RunRecord, TracedRun
from tests.compare import builders as b


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


def test_where_there_is_one_judge_is_said() -> None:
    unknown = UnknownOp("mylib.fused", "prefill", "lm_head", 1, None, "torch has no formula for this operator")
    lacking = Ledger("dispatcher", judge().nodes[:-1], ("flops",), judge().stages, (unknown,))
    found = compare(judged(lacking))
    assert found.verdict == "exact"
    assert found.judges is not None
    assert found.judges.alone == ("operator mylib.fused: 1 call in lm_head, no bound of its FLOPs",)
    assert compare(judged(None)).judges == replace(found.judges, agreed=0, flops=0, alone=(WITHOUT,))


def test_an_unknown_sum_is_a_difference() -> None:
    nodes = (*judge().nodes[:-1], replace(judge().nodes[-1], costs={"flops": None}))
    (bad,) = compare(judged(replace(judge(), nodes=nodes))).select(level="judge")
    assert (bad.module, bad.delta, bad.values) == ("lm_head", None, {"dynamic": 960, "dispatcher": None})


def test_an_expert_that_costs_more_a_row_is_named() -> None:
    # 64 FLOPs a row in three experts; the fourth, with 2 rows, 100 a row.
    run = TracedRun("prompt", None, 0, 0, 0, 0, 0, {"l.experts": (3, 0, 1, 1, 2)}, {"l.experts": (192, 0, 64, 64, 200)})
    capture = replace(judged(judge()), run=RunRecord(RunOptions(), (), (run,)), callgraph=b.capture().callgraph)
    from costproof.compare.reached import uneven_experts

    (bad,) = uneven_experts(capture)
    assert (bad.id, bad.delta) == ("judge/prefill[prompt]/l.experts.4#flops", 200 - 2 * 64)
    assert bad.evidence == ("run prompt: 200 FLOPs, where its rows would cost 128 in most experts beside it",)
