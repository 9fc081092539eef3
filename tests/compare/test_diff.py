"""Two sides compared, on a page of numbers worked out by hand (:mod:`tests.support.builders`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from costproof.compare.diff.attribution import Term
from costproof.compare.diff.diff import Levers, StageMetric, adds_up, diff
from costproof.compare.diff.types import IMPLEMENTATION, Diff
from costproof.ledger.baseline import Baseline, fold_capture
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.reports.diff import diff_csv
from costproof.reports.outputs import variants
from costproof.reports.report import Report
from costproof.run.operand_files import baseline_at
from tests.support.builders import ATTENTION, LAYERS, LINEAR, analytic, at, capture, dynamic, edited, node, static
from tests.support.toy import toy

diff_md = variants("diff")["md"].text
diff_text = variants("diff")["text"].text


def side(*ledgers: Ledger, **changes: object) -> Baseline:
    made: Capture = replace(capture(ledgers or None), **changes)  # type: ignore[arg-type]
    return fold_capture(made)


def checked(base: Baseline, head: Baseline, levers: Levers | None = None) -> Diff:
    found = diff(base, head, levers)
    assert list(adds_up(found)) == []
    return found


def test_the_same_is_the_same() -> None:
    found = checked(side(), side())
    assert (found.verdict, found.rows, found.changes, found.exit_code) == ("same", (), (), 0)
    assert found.totals["flops"].delta == 0
    assert found.totals["flops"].terms == ()


def test_rows_are_matched_by_role_and_add_up() -> None:
    """Every layer's linear doubles; one layer more attention; lm_head's parameters are gone."""
    head = edited(analytic(), at("layers.0.attn", "linear"), costs={"flops": 5 * LINEAR})
    head = edited(head, at("lm_head", metric="params"), drop=True)
    head = replace(head, nodes=(*head.nodes, node("layers.4.attn", "attention", "flops", ATTENTION)))
    found = checked(side(analytic()), side(head))
    told = {(r.part, r.kind, r.metric): (r.base, r.head, r.change) for r in found.rows}
    assert told == {
        ("layers.*.attn", "linear", "flops"): (LAYERS * LINEAR, (LAYERS + 4) * LINEAR, "changed"),
        ("layers.*.attn", "attention", "flops"): (LAYERS * ATTENTION, (LAYERS + 1) * ATTENTION, "changed"),
        ("lm_head", "", "params"): (80, 0, "removed"),
    }
    assert found.totals["flops"].delta == 4 * LINEAR + ATTENTION
    assert found.verdict == "changed"


def test_a_part_that_moved_stands_at_both_places() -> None:
    head = edited(analytic(), at("lm_head"), module="model.head")
    found = checked(side(analytic()), side(head))
    told = {(r.part, r.metric, r.delta, r.change, r.moved) for r in found.rows}
    metrics = (("params", 80), ("flops", 960), ("calls", 1))
    assert told == {
        (part, m, sign * n, "moved", f"prefill/{other}")
        for part, other, sign in (("lm_head", "model.head", -1), ("model.head", "lm_head", 1))
        for m, n in metrics
    }
    assert found.totals["flops"].delta == 0


def test_what_has_not_moved() -> None:
    """Another number, one place more with the same rows, a place that is still there: nothing moved in any of them."""

    def fates(base: Ledger, head: Ledger) -> dict[str, set[tuple[str, str]]]:
        found: dict[str, set[tuple[str, str]]] = {}
        for row in checked(side(base), side(head)).rows:
            found.setdefault(row.part, set()).add((row.change, row.moved))
        return found

    gone = edited(analytic(), at("lm_head"), drop=True)
    other = node("model.head", "linear", "flops", 961)
    two = [node(name, "linear", "flops", 7) for name in ("old", "older", "new")]

    def having(*nodes: CostNode) -> Ledger:
        return replace(gone, nodes=(*gone.nodes, *nodes))

    assert fates(having(node("lm_head", "linear", "flops", 960)), having(other)) == {
        "lm_head": {("removed", "")},
        "model.head": {("added", "")},
    }
    assert fates(having(*two[:2]), having(two[2])) == {
        "old": {("removed", "")}, "older": {("removed", "")}, "new": {("added", "")},
    }  # fmt: skip
    assert fates(having(two[0]), having(two[0], two[2])) == {"new": {("added", "")}}
    # With one place on either side it has, and stands at both.
    assert fates(having(two[0]), having(two[2])) == {
        "old": {("moved", "prefill/new")}, "new": {("moved", "prefill/old")},
    }  # fmt: skip


def test_a_stage_more() -> None:
    extra = node("lm_head", "linear", "flops", 7, stage="decode")
    head = replace(analytic(), nodes=(*analytic().nodes, extra), stages=("prefill", "decode"))
    found = checked(side(analytic()), side(head))
    assert [(s.id, s.change, s.totals["flops"].delta) for s in found.stages] == [
        ("prefill", "same", 0),
        ("decode", "added", 7),
    ]


def test_unknown_is_never_0() -> None:
    head = edited(analytic(), at("lm_head", "linear"), costs={"flops": None}, exprs={})
    found = checked(side(analytic()), side(head))
    assert (found.verdict, found.exit_code) == ("incomplete", 3)
    assert found.incomplete == ("the analytic source does not know flops of prefill/lm_head:linear",)
    assert found.totals["flops"].delta is None
    assert found.totals["params"].delta == 0


def test_unknown_on_both_sides_is_not_the_same() -> None:
    both = side(edited(analytic(), at("lm_head", "linear"), costs={"flops": None}, exprs={}))
    found = checked(both, both)
    assert (found.verdict, len(found.rows), found.totals["flops"].delta) == ("incomplete", 1, None)


def test_conventions_that_differ_are_not_compared() -> None:
    found = checked(side(analytic()), side(analytic(), conventions=Conventions(causal="triangle")))
    assert found.not_comparable == dict.fromkeys(
        ("flops", "vector_flops"), "causal is full in the base, triangle in the head"
    )
    assert set(found.totals) == {"params", "calls"}
    assert found.exit_code == 3


def test_multiply_accumulates_are_brought_to_flops() -> None:
    """A MAC is two FLOPs; of vector work, which does not consist of MACs, nothing is known."""
    macs = Conventions(unit="mac")
    whole = side(analytic()).sources["analytic"].total("flops")
    assert whole is not None
    found = checked(side(analytic()), side(analytic(), conventions=macs))
    assert (found.totals["flops"].base, found.totals["flops"].delta) == (whole, whole)
    assert found.not_comparable == {"vector_flops": "unit is flop in the base, mac in the head"}
    both = checked(side(analytic(), conventions=macs), side(replace(analytic(), conventions={"unit": "mac"})))
    assert (both.verdict, both.totals["flops"].base, both.not_comparable) == ("same", 2 * whole, {})


def test_a_metric_that_one_side_lacks_is_not_compared() -> None:
    head = replace(analytic(), metrics=("params", "calls", "flops"))
    assert checked(side(analytic()), side(head)).not_comparable == {"vector_flops": "the head does not have it"}


def test_the_source_that_changed_is_told_first() -> None:
    """Formulas and run say the same as before; the export counts 100 more."""
    head = edited(static(), at("lm_head", "aten.mm"), costs={"flops": 1060}, exprs={})
    found = checked(side(), side(analytic(), head, dynamic()))
    assert (found.verdict, found.source, list(found.others)) == ("changed", "static", ["analytic", "dynamic"])
    assert found.totals["flops"].delta == 100
    assert not any(part.rows for part in found.others.values())


def test_no_source_in_common() -> None:
    with pytest.raises(Incomplete, match="no source in common"):
        diff(side(analytic()), side(static()))


def test_what_is_no_key_is_named_in_a_fixed_order() -> None:
    """Nothing but versions changed, and the export counts 100 more: libraries; with costproof's too, both."""
    head = edited(static(), at("lm_head", "aten.mm"), costs={"flops": 1060}, exprs={})
    old, new = {"costproof": "0", "torch": "2.6"}, {"costproof": "0", "torch": "2.13"}
    found = checked(side(static(), environment=old), side(head, environment=new))
    assert found.totals["flops"].terms == (Term(("libraries",), 100),)
    both = checked(side(static(), environment=old), side(head, environment={**new, "costproof": "1"}))
    assert both.totals["flops"].terms == (Term(("libraries", "formulas"), 100),)
    assert both.totals["flops"].shares == {"libraries + formulas": 100}
    none = checked(side(static()), side(head))
    assert none.totals["flops"].terms == (Term(("not attributed",), 100),)


def test_keys_the_kernel_and_the_rest() -> None:
    """flops = 10 x batch x steps, 3 more with the other kernel; the head's own number has 5 that nothing explains."""

    def point(changed: frozenset[str]) -> Mapping[StageMetric, int | None]:
        batch = 4 if "workload.batch" in changed else 2
        steps = 5 if "workload.new_tokens" in changed else 1
        return {("prefill", "flops"): 10 * batch * steps + 3 * batch * (IMPLEMENTATION in changed)}

    def one(flops: int, **workload: object) -> Baseline:
        ledger = Ledger("static", (node("a", "mm", "flops", flops),), ("flops",), ("prefill",))
        return side(ledger, workload=replace(capture().workload, **workload))  # type: ignore[arg-type]

    base, head = one(20), one(10 * 4 * 5 + 3 * 4 + 5, batch=4, new_tokens=5, attention="eager")
    levers = Levers(("workload.new_tokens", "workload.batch"), point, implementation=True)
    found = checked(base, head, levers).stages[0].totals["flops"]
    # With the other kernel first (6): steps alone 10 x 2 x 4 = 80, batch alone 10 x 2 + 3 x 2 = 26, jointly 10 x 2 x 4.
    assert found.terms == (
        Term(("workload.new_tokens",), 80),
        Term(("workload.batch",), 26),
        Term(("workload.new_tokens", "workload.batch"), 80),
        Term((IMPLEMENTATION,), 6),
        Term(("not attributed",), 5),
    )
    assert sum(t.amount for t in found.terms) == found.delta == 217 - 20
    assert found.shares["workload.batch"] == 26 + 40


def test_without_formulas_all_that_changed_is_one_term() -> None:
    head = edited(static(), at("lm_head", "aten.mm"), costs={"flops": 1060}, exprs={})
    found = checked(side(static()), side(head, workload=replace(capture().workload, batch=4, logits="last")))
    assert [p.keys for p in found.players] == [("workload.batch", "workload.logits")]
    assert found.totals["flops"].terms == (Term(("workload.batch + workload.logits",), 100),)


def with_peaks(**sizes: tuple[int | None, int | None]) -> Baseline:
    """The toy with a call of each of these stages, and the graph and eager peak of it."""

    def at(size: int | None) -> Peak | None:
        return None if size is None else Peak(size, "", "", ())

    calls = (CallPeaks(stage, "", "", at(graph), at(eager)) for stage, (graph, eager) in sizes.items())
    return fold_capture(replace(toy(), peaks=tuple(calls)))


def test_peaks_are_compared_stage_by_stage_and_the_whole_is_the_largest() -> None:
    base, head = with_peaks(sam=(900, 950), decode=(100, None)), with_peaks(sam=(700, 950), decode=(800, 5))
    found = diff(base, head)
    part = found.by_source["peaks"]
    graph, eager = (part.totals[m] for m in ("graph_peak_bytes", "eager_peak_bytes"))
    # Of 900 and 100 the larger, of 700 and 800 likewise; what one call does not know, the whole does not.
    assert [(q.base, q.head, q.delta) for q in (graph, eager)] == [(900, 800, -100), (None, 950, None)]
    assert {s.id: s.totals["graph_peak_bytes"].delta for s in part.stages} == {"sam": -200, "decode": 700}
    assert (found.verdict, list(adds_up(found))) == ("incomplete", [])
    assert found.incomplete == ("the peaks source does not know eager_peak_bytes of decode/(stage)",)
    same = diff(base, with_peaks(sam=(900, 950), decode=(101, None)))
    assert same.by_source["peaks"].totals["graph_peak_bytes"].delta == 0
    for text in (diff_text(found), diff_md(found)):
        assert "peak of live activations, graph" in text
    assert "-11.1 %" in diff_text(found)  # 100 of 900
    assert ["peaks", "total", "", "", "", "graph_peak_bytes", "900", "800", "-100", "changed", ""] in [
        line.split(",")[:11] for line in diff_csv(found).splitlines()
    ]


def test_whoever_has_no_peaks_is_told_so_and_misses_no_cost() -> None:
    found = diff(fold_capture(toy()), with_peaks(sam=(900, 950)))
    assert (found.verdict, found.exit_code, found.complete) == ("same", 0, True)
    assert found.not_comparable == dict.fromkeys(("graph_peak_bytes", "eager_peak_bytes"), "the base has none")
    assert "not compared: peak of live activations, graph (the base has none)" in diff_text(found)


def test_a_report_of_whole_stages_has_the_same_peaks(tmp_path: Path) -> None:
    held = Peak(900, "", "", ())
    peaked = replace(toy(), peaks=(CallPeaks("sam", "global", "", held, None),))
    file = tmp_path / "static_compute.json"
    file.write_text(Report(peaked).render("static-json"), encoding="utf-8")
    assert baseline_at(str(file)).sources["peaks"] == fold_capture(peaked).sources["peaks"]
    data = json.loads(file.read_text(encoding="utf-8"))
    data["stages"][0]["graph_peak_bytes"] = "900"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(BadInput, match="is not an integer"):
        baseline_at(str(file))
