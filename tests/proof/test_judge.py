"""The judge, the bound, the closed form: against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from costproof.algebra.symbols import parse
from costproof.compare.proof.certificate import Claim, Counterexample, bound, degrees
from costproof.compare.proof.closed_form import closed_form, readings, render
from costproof.compare.proof.judge import Answer, judge, settled
from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger

VALUES = {("sam", "global"): {"n": 2, "b": 2, "H": 64}}
CONFIG = {"h": 3}


def ledger(source: str, metric: Metric, expr: str, modules: tuple[str, ...] = ("layers.0", "layers.1")) -> Ledger:
    kind = "linear" if metric == "flops" else ""
    nodes = tuple(CostNode("sam", "global", m, kind, {}, {metric: expr}) for m in modules)
    return evaluate_ledger(Ledger(source, nodes, (metric,), ("sam",)), VALUES, CONFIG)


def counterexample(found: Answer) -> Counterexample:
    assert not found.claims
    (example,) = found.counterexamples
    return example


def claim(found: Answer) -> Claim:
    assert not found.counterexamples
    (same,) = found.claims
    return same


def judged(analytic: str, static: str) -> Answer:
    return judge(ledger("analytic", "flops", analytic), ledger("static", "flops", static), VALUES, CONFIG)


def test_an_identity_holds_for_all_views() -> None:
    found = judged("2*n*h*(h + 1)", "24*n")
    same = claim(found)
    assert (same.method, same.at_config, same.module, same.modules) == ("identity", "24*n", "layers.[0-1]", 2)
    assert (found.rows, found.formulas) == ({"sam": 2}, (("sam", "2*n*h*(h + 1)"),))


def test_equal_at_the_point_is_no_identity() -> None:
    # Both are 8 at n = 2; n**3 - 4 n = n (n - 2) (n + 2) is not zero at n = 1.
    found = judged("n**3", "4*n")
    example = counterexample(found)
    assert example.difference == "n*(n - 2)*(n + 2)"
    assert example.smallest == {"n": 1}
    assert found.rows == {"sam": 2}


def test_a_missing_term_is_shown_factored() -> None:
    assert counterexample(judged("2*n*h", "6*n + n*36")).difference == "-36*n"


def test_numbers_against_a_growing_formula_hold_at_the_point_only() -> None:
    assert claim(judged("n*h", "6")).method == "enumeration"
    assert counterexample(judged("n*h", "7"))


def test_a_symbol_that_the_graphs_kept_stays_one() -> None:
    # At n = 2 both are 6. Another module's graph grows with n, so this one's export kept n too, and does not grow.
    static = ledger("static", "flops", "5*n", ("layers.0",))
    flat = ledger("static", "flops", "6", ("layers.1",))
    whole = Ledger("static", (*static.nodes, *flat.nodes), ("flops",), ("sam",))
    formulas = [ledger("analytic", "flops", e, (m,)) for e, m in (("5*n", "layers.0"), ("n*h", "layers.1"))]
    analytic = replace(formulas[0], nodes=tuple(n for f in formulas for n in f.nodes))
    (example,) = judge(analytic, whole, VALUES, CONFIG).counterexamples
    assert (example.difference, example.smallest) == ("3*(n - 2)", {"n": 1})
    fixed = {("sam", "layers.1", "flops")}
    assert claim(judge(analytic, whole, VALUES, CONFIG, fixed=fixed, only_fixed=True)).method == "enumeration"


def test_pairs_that_a_graph_counts_in_numbers_hold_at_its_sizes_only() -> None:
    # The graph keeps n, but no formula of the mask: its 6 pairs are those of n = 2. A count of 7 is wrong there.
    for pairs, right in ((6, True), (7, False)):
        flops, kept = ledger("static", "flops", "5*n", ("layers.0",)), dict[Metric, int | None](kept_scores=pairs)
        counted = (*flops.nodes, CostNode("sam", "global", "layers.0", "", kept, {}))
        static = Ledger("static", counted, ("flops", "kept_scores"), ("sam",))
        formulas = [ledger("analytic", m, e, ("layers.0",)) for m, e in (("flops", "5*n"), ("kept_scores", "n*h"))]
        nodes = tuple(n for f in formulas for n in f.nodes)
        found = judge(replace(static, source="analytic", nodes=nodes), static, VALUES, CONFIG)
        assert {c.metric: c.method for c in found.claims} == (
            {"flops": "identity", "kept_scores": "enumeration"} if right else {"flops": "identity"}
        )
        assert [c.difference for c in found.counterexamples] == ([] if right else ["-1"])


def test_a_side_is_a_multiple_of_its_step() -> None:
    # H = 16 k: ceiling(H/8) = 2 k. H = 24 k: ceiling(H/16) = ceiling(3 k/2), 2 at k = 1 and not 3/2.
    formula, graph = ledger("analytic", "flops", "n*ceiling(H/8)"), ledger("static", "flops", "n*H/8")
    values = {("sam", "global"): {"n": 2, "H": 64}}
    assert claim(judge(formula, graph, values, {}, steps={"H": 16})).method == "identity"
    odd, plain = ledger("analytic", "flops", "n*ceiling(H/16)"), ledger("static", "flops", "n*H/16")
    assert counterexample(judge(odd, plain, values, {}, steps={"H": 24})).smallest == {"H": 24, "n": 1}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # 224**2 * 6 = 301056, and ceiling(x) >= x.
        ("Min(6*H**2*n, 301056*n*ceiling(H/224)**2)", "6*H**2*n"),
        ("Max(6*H**2*n, 301056*n*ceiling(H/224)**2)", "301056*n*ceiling(H/224)**2"),
        # One less, and the left one is the greater at H = 224.
        ("Min(6*H**2*n, 301055*n*ceiling(H/224)**2)", "Min(6*H**2*n, 301055*n*ceiling(H/224)**2)"),
        ("Min(B, S)", "Min(B, S)"),
        ("Max(B + 2, B)", "B + 2"),
    ],
)
def test_minima_that_are_settled(expression: str, expected: str) -> None:
    assert settled(parse(expression)) == parse(expected)


def test_what_only_one_side_has_differs() -> None:
    nothing = Ledger("static", (), ("flops",), ("sam",))
    assert counterexample(judge(ledger("analytic", "flops", "n"), nothing, VALUES, CONFIG)).difference == "n"


def test_integers_are_compared_as_integers() -> None:
    wrong = judge(ledger("analytic", "flops", "n"), ledger("static", "flops", "3"), VALUES, CONFIG, integers=True)
    right = judge(ledger("analytic", "flops", "n"), ledger("static", "flops", "2"), VALUES, CONFIG, integers=True)
    assert (counterexample(wrong).difference, claim(right).method) == ("-1", "enumeration")


def test_the_bound_of_two_parameters() -> None:
    # (1 - 1/4) (1 - 2/8) = 9/16 = 0.5625; (7/16)^10 = 2.57e-4.
    found = bound("sam", {"x": 1, "y": 2}, {"x": 4, "y": 8, "z": 9}, 10)
    assert (found.caught, found.missed_exponent, found.fixed) == ("562/1000", 3, ())
    assert bound("sam", {"x": 1, "N": 2}, {"x": 4}, 10).fixed == ("N",)
    assert Fraction(7, 16) ** 10 < Fraction(1, 10**3)


def test_too_few_values_catch_nothing() -> None:
    assert bound("sam", {"x": 4}, {"x": 4}, 500).missed_exponent == 0


def test_degrees_in_independent_parameters() -> None:
    found = degrees(["2*hidden**2*n", "n*ceiling(n/w)"], {"hidden": "heads*dim"})
    assert found == {"heads": 2, "dim": 2, "n": 1}


@pytest.mark.parametrize(
    ("constant", "config", "expected"),
    [
        (24, {"hidden": 12}, ("2*hidden",)),
        (1280 * 1280 * 2, {"hidden": 1280}, ("2*hidden**2",)),
        (24, {"a": 12, "b": 3}, ("2*a", "8*b")),
        (23, {"a": 12}, ()),
    ],
)
def test_readings(constant: int, config: dict[str, int], expected: tuple[str, ...]) -> None:
    assert readings(constant, config) == expected


def test_readings_by_kind_of_operator() -> None:
    # 2 1280 1792 with 2 shared experts of 896: a linear layer has no factor 4, so 4*hidden*moe is no reading.
    sizes = {"hidden": 1280, "moe": 896, "shared": 2, "heads": 10, "head_dim": 128}
    assert readings(2 * 1280 * 1792, sizes, (2,)) == ("2*hidden*moe*shared",)
    # heads*head_dim is the width itself, no other reading; kv_heads*head_dim is.
    assert readings(2 * 1280 * 1280, sizes, (2,)) == ("2*hidden**2",)
    assert readings(2 * 1280 * 256, sizes | {"kv_heads": 2, "moe": 3}, (2,))[0] == "2*head_dim*hidden*kv_heads"


def nodes() -> tuple[CostNode, ...]:
    return (
        CostNode("f", "f", "layers.0", "aten.linear", {}, {"flops": "70*B*S"}),
        CostNode("f", "f", "layers.1", "aten.linear", {}, {"flops": "70*B*S"}),
        CostNode("f", "f", "head", "aten.mm", {}, {"flops": "22*B"}),
    )


def test_a_closed_form_is_grouped_and_named() -> None:
    form = closed_form("toy", nodes(), {"hidden": 35, "width": 11, "other": 11})
    assert form.total == "2*B*(70*S + 11)"
    first, second = form.lines
    assert (first.module, first.modules, first.each, first.named) == ("layers.[0-1]", 2, "70*B*S", "2*hidden*B*S")
    assert (second.named, second.readings) == (None, ("2*other", "2*width"))


def test_unknown_flops_have_no_closed_form() -> None:
    with pytest.raises(Incomplete, match="unknown") as error:
        closed_form("toy", (*nodes(), CostNode("f", "f", "tail", "aten.mm", {"flops": None})), {})
    assert "f[f]/tail:aten.mm" in str(error.value)


def test_the_python_form_computes() -> None:
    space: dict[str, object] = {}
    exec(render(closed_form("1 toy", nodes(), {}), "python"), space)
    function = space["model_1_toy_flops"]
    assert callable(function)
    assert function(B=3, S=5) == 3 * (2 * 70 * 5 + 22)


def test_the_python_form_stays_in_integers() -> None:
    # 3 H^3 / 4 + ceiling(H/224)^2 at H = 10^9: 3/4 of 10^27, and ceiling(4464285.7..) = 4464286.
    node = CostNode("f", "f", "m", "linear", {}, {"flops": "3*H**3/4 + ceiling(H/224)**2 + Min(H, 5)"})
    space: dict[str, object] = {}
    exec(render(closed_form("m", (node,), {}), "python"), space)
    function = space["m_flops"]
    assert callable(function)
    assert function(H=10**9) == 75 * 10**25 + 4464286**2 + 5
