"""Differences of counters are explained exactly, and what has no cause stays."""

from __future__ import annotations

from costproof.compare.counters import compare_counters, explain_counter, together
from costproof.ledger.counter import UNATTRIBUTED, CounterCall, CounterInfo, CounterRecord, CounterRun
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import CostNode
from costproof.views.counters import CounterReport
from tests.support.toy import toy

PLACE = ("sam", "global")
FLOP = CounterInfo("a", "a", ("1",), "flop", "operator")
MAC = CounterInfo("b", "b", ("1",), "mac", "operator")

TRUTH = (
    CostNode(*PLACE, "l0", "linear", {"flops": 1000}, evidence=("linear_1",)),
    CostNode(*PLACE, "l0", "scaled_dot_product_attention", {"flops": 300, "vector_flops": 7}),
    CostNode(*PLACE, "norm", "layer_norm", {"vector_flops": 70}),
)


def _call(*rows: tuple[str, str, int]) -> CounterCall:
    return CounterCall(*PLACE, tuple(CostNode(*PLACE, m, k, {"flops": v}) for m, k, v in rows))


def test_macs_norms_and_a_missing_operator() -> None:
    found = explain_counter(MAC, _call(("l0", "linear", 500), ("norm", "layer_norm", 20)), TRUTH)
    assert (found.value, found.normalised, found.truth, found.delta) == (520, 1040, 1300, -780)
    assert {(c.kind, c.amount) for c in found.causes} == {
        ("convention", -520), ("uncounted_operator", -300), ("vector_counted", 40),
    }  # fmt: skip
    assert (found.residual, found.covered) == (0, 1000)


def test_a_generic_product_stands_for_the_kind_of_its_size() -> None:
    found = explain_counter(FLOP, _call(("l0", "aten.addmm", 1000), ("l0", "aten.bmm", 300)), TRUTH)
    assert (found.delta, found.causes, found.residual, found.covered) == (0, (), 0, 1300)


def test_figures_without_a_module_are_matched_over_the_stage() -> None:
    rows = ((UNATTRIBUTED, "aten.addmm", 1000), (UNATTRIBUTED, "aten.addmm>aten.mm", 1000))
    found = explain_counter(FLOP, _call(*rows), TRUTH)
    assert {(c.kind, c.amount) for c in found.causes} == {("double_counting", 1000), ("uncounted_operator", -300)}
    assert found.residual == 0


def test_a_wrong_size_is_not_explained() -> None:
    """Half of the truth looks like a MAC, but the counter does not say that it counts MACs."""
    found = explain_counter(FLOP, _call(("l0", "linear", 500), ("l0", "bmm", 300)), TRUTH)
    assert (found.causes, found.residual, found.covered) == ((), -500, 300)


def test_an_einsum_of_four_digits() -> None:
    truth = (CostNode(*PLACE, "l0", "einsum", {"flops": 2 * 123456}, evidence=("e1", "e2")),)
    info = CounterInfo("c", "c", ("1",), "flop", "operator", einsum="four digits")
    # Each prints as 1.235e+05: 123,500, of which the tool keeps an even number.
    assert explain_counter(info, _call(("l0", "einsum", 247000)), truth).residual == 0
    assert explain_counter(info, _call(("l0", "einsum", 247002)), truth).residual == 247002 - 246912
    assert explain_counter(FLOP, _call(("l0", "einsum", 247000)), truth).residual == 88


def test_a_failure_is_a_row() -> None:
    failed = explain_counter(FLOP, CounterCall(*PLACE, error="RuntimeError: no"), TRUTH)
    good = explain_counter(FLOP, _call(("l0", "linear", 1000), ("l0", "bmm", 300)), TRUTH)
    both = together([good, failed])
    assert (both.value, both.residual, both.truth) == (None, None, 2600)
    assert both.error == "sam[global]: RuntimeError: no"


def test_without_a_truth_the_figures_stay() -> None:
    """The second call has no truth: its figures are shown, in MACs and in FLOP, and nothing is said about them."""
    whole, late = ("sam", "global"), ("sam", "crops")
    rows = {p: CounterCall(*p, (CostNode(*p, "l0", "linear", {"flops": 500}),)) for p in (whole, late)}
    truth = CounterCall(*whole, (CostNode(*whole, "l0", "linear", {"flops": 1000}),))
    tools = (CounterRun(MAC, "1", tuple(rows.values())), CounterRun(FLOP, None, ()))
    found = compare_counters(CounterRecord((truth, CounterCall(*late, error="took too long")), tools))
    seen = {f.invocation: (f.value, f.normalised, f.truth, f.delta, f.residual, f.verdict) for f in found.findings}
    assert seen == {
        "global": (500, 1000, 1000, -500, 0, "explained"),
        "crops": (500, 1000, None, None, None, "not compared"),
    }
    (both, skipped) = found.totals
    assert (both.value, both.normalised, both.truth, both.residual) == (1000, 2000, None, None)
    assert (both.verdict, skipped.verdict) == ("not compared", "skipped")
    assert found.incomplete == ("the truth is unknown: sam[crops]: took too long",)


def test_what_failed_is_said_once_for_all_places() -> None:
    calls = (CounterCall("sam", "global", error="no"), CounterCall("sam", "crops", error="no"))
    truth = tuple(
        CounterCall(c.stage, c.invocation, (CostNode(c.stage, c.invocation, "l", "linear", {"flops": 2}),))
        for c in calls
    )
    found = compare_counters(CounterRecord(truth, (CounterRun(FLOP, "1", calls),)))
    assert found.incomplete == ("the counter a failed: sam[global], sam[crops]: no",)


def test_a_difference_is_a_finding_although_another_counter_failed() -> None:
    """The counter has 3 FLOP where ours are 2, with no cause."""
    places = [("sam", "global"), ("sam", "crops")]
    nodes = [(CostNode(*places[0], "l", "linear", {"flops": n}),) for n in (2, 3)]
    truth, counted = (CounterCall(*places[0], each) for each in nodes)
    made = CounterRecord((truth,), (CounterRun(FLOP, "1", (counted, CounterCall(*places[1], error="no"))),))
    found = CounterReport(Conventions(), toy().target, toy().workload, {}, compare_counters(made))
    assert (bool(found.compared.incomplete), found.exit_code) == (True, 1)
