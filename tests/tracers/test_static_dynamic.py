"""The heart of the matter: the exported parts, and stages traced alone, add up to the traced whole, to the integer."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.compare.compare import compare
from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import STORAGE
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Workload
from costproof.models.pages.page import Page, page_workload, with_page
from costproof.models.specs import Built, ExportJob
from costproof.opgraph.merge import DecodeStep, evidence, merge_nodes, sum_all_steps, sum_traced_steps
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.tracers.dynamic import dynamic_ledger
from costproof.tracers.isolated import isolated_ledger
from costproof.tracers.sources import trace_sources
from costproof.tracers.static import static_ledger
from tests.tracers.small import PAGE, SmallTarget, counted, model

MORE = [
    page_workload("eager", Page(128, 64, (2, 3)), 7, 2, 2, "float32", "eager", "last", "batched_mm"),
    page_workload("text", None, 7, 5, 3, "float16", "sdpa", "last"),
    page_workload("one size", Page(128, 128, (1, 2)), 3, 1, 1, "bfloat16", "eager", "all"),
    page_workload("no crops, no decoding", Page(192, 64), 3, 0, 2),
]
WORKLOADS = [PAGE, *(pytest.param(run, marks=pytest.mark.thorough) for run in MORE)]


def by_module(ledger: Ledger) -> dict[tuple[str, ...], int | None]:
    """Every metric of every module in every invocation; kinds are spelled differently by the two."""
    found: dict[tuple[str, ...], int | None] = {}
    for node in ledger.nodes:
        for metric, value in node.costs.items():
            key = (node.stage, node.invocation, node.module, metric)
            old = found.get(key, 0)
            found[key] = None if value is None or old is None else old + value
    return {k: v for k, v in found.items() if v != 0}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda run: run.name)
def test_the_parts_are_the_whole(workload: Workload) -> None:
    static, dynamic = counted(static_ledger, workload), counted(dynamic_ledger, workload)
    assert static.unknown_ops == dynamic.ledger.unknown_ops == ()
    # The small target has no formulas that say which operators there are.
    assert set(static.metrics) - set(dynamic.ledger.metrics) == {"unfused_bytes"}
    assert by_module(static.without(("unfused_bytes",))) == by_module(dynamic.ledger)
    assert dynamic.trace_check.differences == ()
    assert dynamic.trace_check.modules_compared > 30
    assert dynamic.trace_check.edges_compared == dynamic.trace_check.modules_compared - 1
    stages_alone_are_the_whole(workload, dynamic.ledger)


def stages_alone_are_the_whole(workload: Workload, whole: Ledger) -> None:
    """Node by node: both sources have TorchLens's words for operators. A stage alone says nothing of checkpoints."""
    shared = tuple(metric for metric in whole.metrics if metric not in STORAGE)

    def by_node(ledger: Ledger) -> dict[tuple[str, str], int | None]:
        return {(n.id, m): v for n in ledger.nodes for m, v in n.costs.items() if v != 0 and m in shared}

    alone = counted(isolated_ledger, workload)
    assert (alone.source, alone.metrics, alone.stages) == ("isolated", shared, whole.stages)
    assert alone.unknown_ops == ()
    assert by_node(alone) == by_node(whole)
    owners = {path: type(module).__name__ for path, module in SmallTarget().build(workload).named_modules()}
    assert {(n.module, n.owner) for x in (alone, whole) for n in x.nodes} <= set(owners.items())
    for metric in shared:
        assert alone.total(metric) == whole.total(metric)
        if metric not in ("kv_cache_bytes", "kv_read_bytes") or workload.new_tokens:
            assert (alone.total(metric) or 0) > 0


def test_known_numbers() -> None:
    static = counted(static_ledger, PAGE)
    (head,) = [n for n in static.nodes if n.module == "lm_head" and n.stage == "prefill" and "flops" in n.costs]
    assert parse(head.exprs["flops"]) == parse("2*B*S*80*96")
    assert head.costs["flops"] == 2 * 17 * 80 * 96
    steps = {n.kind: n for n in static.nodes if n.module == "lm_head" and n.stage == "decode" and n.invocation}
    assert steps[""].costs["calls"] == 4
    assert steps["aten.linear"].costs["flops"] == 4 * 2 * 80 * 96
    attention = [
        n
        for n in static.nodes
        if n.module == "model.language_model.layers.0.self_attn" and n.invocation == "steps" and "flops" in n.exprs
    ]
    # Contexts 18, 19, 20, 21 with the step's own token, 5 heads, 16 + 16 dimensions.
    assert sum(n.costs["flops"] or 0 for n in attention) == 2 * 5 * (16 + 16) * (18 + 19 + 20 + 21)
    grown = static.total("kv_cache_bytes")
    assert grown == 2 * 2 * 5 * 16 * 2 * (17 + 4)
    assert static.total("params") == sum(p.numel() for p in model().parameters())


def test_decode_is_a_closed_sum() -> None:
    one, many = (static_ledger(SmallTarget(), with_page(PAGE, None, new_tokens=n)) for n in (1, 6))
    total = {n.id: n for n in many.nodes}
    for node in one.nodes:
        assert total[node.id].exprs == node.exprs
    steps = [sympy.sympify(0)]
    for node in one.nodes:
        if node.stage == "decode" and "flops" in node.exprs:
            steps.append(parse(node.exprs["flops"]))
    assert {s.name for s in sympy.Add(*steps).free_symbols} == {"B", "N", "P"}


def node(module: str, value: int | None) -> CostNode:
    return CostNode("decode", "steps", module, "", {"flops": value})


def test_a_straight_line_is_summed_exactly() -> None:
    # f = 10 + 3 i for i in 0..6: 7 * 10 + 3 * 21 = 133.
    steps = [DecodeStep(5, (node("a", 10),)), DecodeStep(8, (node("a", 19),)), DecodeStep(11, (node("a", 28),))]
    nodes, notes = sum_traced_steps(steps, 7)
    assert nodes[0].costs == {"flops": 133}
    assert notes == []


def test_a_bent_line_is_unknown() -> None:
    steps = [DecodeStep(5, (node("a", 10),)), DecodeStep(8, (node("a", 20),)), DecodeStep(11, (node("a", 28),))]
    nodes, notes = sum_traced_steps(steps, 7)
    assert nodes[0].costs == {"flops": None}
    assert "not a straight line: [10, 20, 28]" in notes[0]


def test_all_steps_are_simply_added() -> None:
    nodes, notes = sum_traced_steps([DecodeStep(5, (node("a", 10),)), DecodeStep(6, (node("a", 21), node("b", 1)))], 2)
    assert [n.costs["flops"] for n in nodes] == [31, 1]
    assert notes == []
    assert sum_traced_steps([DecodeStep(5, (node("a", None),)), DecodeStep(6, (node("a", 1),))], 2)[0][0].costs == {
        "flops": None
    }


def test_a_floor_bends_where_a_table_is_read_whole() -> None:
    # Ten steps from context 1: 100 bytes, and rows of 4 bytes for each of the tokens before and the new one, in a table
    # of 6 rows: 8, 12, 16, 20 and then 6 times 24 bytes.
    def step(context: int) -> DecodeStep:
        root = CostNode("decode", "steps", "", "", {"floor_bytes": 100 + min(24, 4 * (context + 1))})
        return DecodeStep(context, (root,), {"table": (4 * (context + 1), 24)} if context != 5 else {})

    nodes, notes = sum_traced_steps([step(1), step(5), step(10)], 10)
    assert nodes[0].costs == {"floor_bytes": 10 * 100 + 8 + 12 + 16 + 20 + 6 * 24}
    assert notes == []
    # Rows that lie on no line have no sum.
    bent = [step(1), replace(step(5), tables={"table": (9, 24)}), step(10)]
    assert sum_traced_steps(bent, 10)[0][0].costs == {"floor_bytes": None}


def test_an_unknown_cost_leaves_the_others_of_every_step() -> None:
    each = CostNode("decode", "steps", "a", "", {"calls": 2, "vector_flops": None}, {"flops": "3*P"})
    found = sum_all_steps(each)
    # 3P, 3(P+1), … over N steps: 3NP + 3N(N-1)/2; from context 5 four of them, 15 + 18 + 21 + 24.
    assert found.costs == {"vector_flops": None}
    assert evaluate(found.exprs["flops"], {"P": 5, "N": 4}) == 78
    assert evaluate(found.exprs["calls"], {"N": 4}) == 8


def test_merging_adds_numbers_and_expressions() -> None:
    a = CostNode("s", "i", "m", "k", {"flops": 3}, evidence=("x",))
    b = CostNode("s", "i", "m", "k", {}, {"flops": "2*B"}, owner="Linear", evidence=("y",))
    (merged,) = merge_nodes([a, b])
    assert parse(merged.exprs["flops"]) == parse("2*B + 3")
    assert (merged.owner, merged.evidence) == ("Linear", ("x", "y"))
    (unknown,) = merge_nodes([a, CostNode("s", "i", "m", "k", {"flops": None})])
    assert unknown.costs == {"flops": None}


def test_evidence_is_short() -> None:
    assert evidence(f"op{i}" for i in range(15)) == (*(f"op{i}" for i in range(12)), "… and 3 more")
    # Two operators of 20 labels, each cut to 12: 12 of 40 are shown.
    a, b = (CostNode("s", "i", "m", "k", {}, evidence=evidence(f"{op}{i}" for i in range(20))) for op in "ab")
    (merged,) = merge_nodes([a, b])
    assert merged.evidence == (*(f"a{i}" for i in range(12)), "… and 28 more")


TEXT = with_page(PAGE, None, new_tokens=1)


@pytest.mark.thorough
def test_both_at_once_give_what_each_gives() -> None:
    heard: list[str] = []
    found = trace_sources(SmallTarget(), TEXT, lambda what, done, total: heard.append(what.split(":")[0]))
    assert not isinstance(found.static, Incomplete)
    assert not isinstance(found.dynamic, Incomplete)
    # Which experts run is data: a run does not tell what its operators move in a looped mixture.
    metrics = {*found.static.metrics} & {*found.dynamic.ledger.metrics}
    ledgers = (found.static, found.dynamic.ledger)
    static, dynamic = ({key: n for key, n in by_module(x).items() if key[-1] in metrics} for x in ledgers)
    assert static == dynamic
    assert set(heard) == {"static", "dynamic"}


class Failing(SmallTarget):
    """A target whose model cannot be run."""

    def build_run(self, workload: Workload, progress: Any) -> Built:
        """Not today."""
        raise Incomplete("no model today", where="here", fix="wait")


class Dying(SmallTarget):
    """A target that ends its process."""

    def build_run(self, workload: Workload, progress: Any) -> Built:
        """Not a word."""
        os.kill(os.getpid(), 9)
        raise AssertionError("not reached")


class Unexported(SmallTarget):
    """A target with nothing to export today."""

    def export_jobs(self, model: Any, workload: Workload) -> tuple[ExportJob, ...]:
        """Not today."""
        raise Incomplete("no graph today", where="here")


def test_an_error_of_the_other_process_leaves_a_report_that_says_so() -> None:
    report = count_sources(Prepared(Failing(), TEXT, ("static", "dynamic")))
    assert [ledger.source for ledger in report.capture.ledgers] == ["static"]
    assert report.capture.lacking == {"dynamic": "failed: no model today; in here"}
    found = compare(report.capture)
    assert found.verdict == "incomplete"
    assert "dynamic: failed: no model today; in here" in found.incomplete


@pytest.mark.usefixtures("one_process")
def test_an_export_that_fails_leaves_a_report_that_says_so() -> None:
    report = count_sources(Prepared(Unexported(), TEXT, ("static", "dynamic", "isolated")))
    assert [ledger.source for ledger in report.capture.ledgers] == ["dynamic", "isolated"]
    found = compare(report.capture)
    # Two sources are left and agree; that the third tried and failed is no proof all the same.
    assert found.verdict == "incomplete"
    assert found.incomplete == ("static: failed: no graph today; in here",)
    with pytest.raises(Incomplete, match="no graph today"):
        count_sources(Prepared(Unexported(), TEXT, ("static",)))


def test_a_process_that_dies_is_incomplete() -> None:
    died = trace_sources(Dying(), TEXT).dynamic
    assert isinstance(died, Incomplete)
    assert died.what == "the dynamic source failed"
    assert (died.got or "").startswith("its process ended with -9")
