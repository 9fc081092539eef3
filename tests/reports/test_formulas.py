"""Formulas of a stage: three readings, one value. Values by hand from the docstring of the toy model."""

from __future__ import annotations

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse, version
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.node import CostNode
from costproof.views.formulas import nodes_formula, stage_formula
from tests.support.toy import ledger, toy


def _crops(source: str) -> list[CostNode]:
    return [n for n in ledger(source).nodes if (n.stage, n.invocation) == ("sam", "crops")]


def test_one_invocation_takes_its_value() -> None:
    made = toy()
    formula = nodes_formula(_crops("analytic"), "flops", made.target.symbols, made.symbols)
    assert formula is not None
    # 2 layers x 2 * 3 views * 4 tokens * 4 * 4
    assert evaluate(parse(formula.at_config), {"n": 3, "H": 32}) == 768
    assert evaluate(parse(formula.expression), {"n": 3, "H": 32, "sam_hidden": 4}) == 768
    assert formula.symbols == ("H", "n")


def test_a_stage_with_two_calls_keeps_their_sizes_apart() -> None:
    made = toy()
    formula = stage_formula(ledger("analytic"), "flops", "sam", made.target.symbols, made.symbols)
    assert formula is not None
    sizes = {"n_global": 1, "H_global": 64, "n_crops": 3, "H_crops": 32}
    assert evaluate(parse(formula.at_config), sizes) == 1024 + 768
    assert evaluate(parse(formula.expression), {**sizes, "sam_hidden": 4}) == 1024 + 768
    assert r"^{\mathrm{crops}}" in formula.latex


def test_latex_uses_the_documented_symbols() -> None:
    node = CostNode("s", "c", "m", "k", {"flops": 6}, {"flops": "2*n*width"})
    formula = nodes_formula([node], "flops", {}, {"width": SymbolDoc(r"h_{\mathrm{sam}}", "")})
    assert formula is not None
    assert sorted(formula.latex.split()) == sorted(["2", "n", r"h_{\mathrm{sam}}"])


def test_the_version_names_the_polynomial_not_its_spelling() -> None:
    one = nodes_formula([CostNode("s", "c", "m", "k", {}, {"flops": "2*n*(n + 1)"})], "flops", {}, {})
    other = nodes_formula([CostNode("s", "c", "m", "k", {}, {"flops": "2*n**2 + 2*n"})], "flops", {}, {})
    third = nodes_formula([CostNode("s", "c", "m", "k", {}, {"flops": "2*n**2 + 3*n"})], "flops", {}, {})
    assert one is not None
    assert other is not None
    assert third is not None
    assert one.version == other.version != third.version
    assert one.version == version(parse("2*n**2 + 2*n"))


def test_equal_nodes_are_multiplied_and_unequal_ones_added() -> None:
    texts = ["2*n*w**2", "2*n*w**2", "n*w"]
    nodes = tuple(CostNode("s", "c", f"m.{i}", "k", {}, {"flops": t}) for i, t in enumerate(texts))
    formula = nodes_formula(nodes, "flops", {"w": 5}, {})
    assert formula is not None
    n = sympy.Symbol("n", integer=True, positive=True)
    assert sympy.expand(parse(formula.at_config) - (2 * (2 * n * 25) + 5 * n)) == 0


def test_without_expressions_there_is_no_formula() -> None:
    assert nodes_formula(_crops("dynamic"), "flops", {}, {}) is None
    assert stage_formula(ledger("analytic"), "flops", "clip", {}, {}) is None
