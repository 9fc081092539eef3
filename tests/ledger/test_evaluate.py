from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import CostNode, Ledger


def ledger(*nodes: CostNode) -> Ledger:
    return Ledger("analytic", nodes, ("flops", "params"), ("sam",))


def test_each_invocation_has_its_own_values() -> None:
    symbolic = ledger(
        CostNode("sam", "global", "m", "linear", {}, {"flops": "2*n*H**2*w"}),
        CostNode("sam", "crops", "m", "linear", {}, {"flops": "2*n*H**2*w"}),
        CostNode("sam", "", "m", "", {}, {"params": "w*b"}),
    )
    values = {("sam", "global"): {"n": 1, "H": 10, "b": 2}, ("sam", "crops"): {"n": 4, "H": 3, "b": 2}}
    found = evaluate_ledger(symbolic, values, {"w": 5})
    assert [list(n.costs.values()) for n in found.nodes] == [[1000], [2 * 4 * 9 * 5], [10]]
    assert [n.exprs for n in found.nodes] == [n.exprs for n in symbolic.nodes]


def test_costs_without_an_expression_stay() -> None:
    known = CostNode("sam", "global", "m", "", {"flops": 7, "calls": None})
    assert evaluate_ledger(ledger(known), {}, {}).nodes == (known,)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9))
def test_functions_are_those_of_integers(a: int, b: int, c: int) -> None:
    source = parse("Min(a, b*c) + Max(a, b) + ceiling(a/c) + floor(b/c) - a**2/c**2*c**2 + (a + b)**3")
    expected = min(a, b * c) + max(a, b) + -(-a // c) + b // c - a * a + (a + b) ** 3
    assert evaluate(source, {"a": a, "b": b, "c": c}) == expected


def test_large_numbers_stay_exact() -> None:
    assert evaluate(parse("x**5 + 1"), {"x": 10**9 + 7}) == (10**9 + 7) ** 5 + 1


@pytest.mark.parametrize(
    ("source", "what"),
    [("x*y", "symbols without a value"), ("x/2", "not an integer"), ("1/(x - 3)", "divides by zero")],
)
def test_what_has_no_value(source: str, what: str) -> None:
    symbolic = ledger(CostNode("sam", "global", "m", "linear", {}, {"flops": source}))
    with pytest.raises(BadInput, match=what) as error:
        evaluate_ledger(symbolic, {("sam", "global"): {"x": 3}}, {})
    assert "sam[global]/m:linear" in str(error.value)


def test_stage_wide_costs_do_not_see_values_that_differ() -> None:
    symbolic = ledger(CostNode("sam", "", "m", "", {}, {"params": "n"}))
    with pytest.raises(BadInput, match="without a value"):
        evaluate_ledger(symbolic, {("sam", "a"): {"n": 1}, ("sam", "b"): {"n": 2}}, {})
