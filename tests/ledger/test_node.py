"""Totals are sums over nodes: unknown stays unknown, and shared modules count once."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costproof
from costproof.ledger.counter import CounterCall
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, UnknownOp, exact_sum, known_part, total

NODES = (
    CostNode("prefill", "", "m.q", "", {"params": 12}),
    CostNode("decode", "", "m.q", "", {"params": 12}),
    CostNode("prefill", "", "m.k", "", {"params": 5}),
    CostNode("prefill", "prompt", "m.q", "linear", {"flops": 100}),
    CostNode("decode", "steps", "m.q", "linear", {"flops": 7}),
    CostNode("decode", "steps", "m.k", "mystery", {"flops": None}),
)
LEDGER = Ledger("static", NODES, ("params", "flops"), ("prefill", "decode"))


def test_a_module_that_works_in_two_stages_owns_its_parameters_once() -> None:
    assert LEDGER.total("params") == 12 + 5
    assert LEDGER.stage_total("prefill", "params") == 17
    assert LEDGER.stage_total("decode", "params") == 12


def test_unknown_is_not_zero() -> None:
    assert LEDGER.stage_total("prefill", "flops") == 100
    assert LEDGER.stage_total("decode", "flops") is None
    assert LEDGER.total("flops") is None
    assert exact_sum([1, None]) is None
    assert exact_sum([]) == 0


def test_what_a_source_does_not_cover_is_unknown() -> None:
    assert LEDGER.total("vector_flops") is None


def test_a_typing_error_is_told() -> None:
    with pytest.raises(BadInput) as error:
        LEDGER.stage_total("prefil", "flops")
    assert (error.value.where, error.value.fix) == ("prefil", "did you mean prefill?")
    with pytest.raises(BadInput) as error:
        LEDGER.stage_total("prefill", "flop")
    assert (error.value.what, error.value.fix) == ("no such metric", "did you mean flops?")


def test_ids_are_unique_and_readable() -> None:
    assert NODES[3].id == "prefill[prompt]/m.q:linear"
    assert NODES[0].id == "prefill/m.q"
    assert len({n.id for n in NODES}) == len(NODES)


def _node(stage: str, module: str, metric: Metric, cost: str | int) -> CostNode:
    """A node whose metric is absent, unknown, in symbols alone, or a number."""
    costs: dict[Metric, int | None] = {"vector_flops": 70}
    costs |= {metric: None if cost == "unknown" else int(cost)} if cost not in ("absent", "S") else {}
    return CostNode(stage, "", module, "", costs, {metric: "S"} if cost == "S" else {})


_COSTS = st.one_of(st.sampled_from(["absent", "unknown", "S"]), st.integers(0, 5))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["m", "n"]), _COSTS)))
def test_stages_sum_to_the_total(rows: list[tuple[str, str, str | int]]) -> None:
    """Absent is not concerned, unknown (or without a value) makes the sum unknown, 0 is zero."""
    ledger = Ledger("static", tuple(_node(s, m, "flops", c) for s, m, c in rows), ("flops",), ("a", "b", "c"))
    given_ = [c for _, _, c in rows if c != "absent"]
    expected = None if {"unknown", "S"} & set(map(str, given_)) else sum(map(int, given_))
    assert ledger.total("flops") == expected
    assert exact_sum(ledger.stage_total(s, "flops") for s in ledger.stages) == expected
    assert known_part(ledger.nodes, "flops") == sum(c for c in given_ if isinstance(c, int))


def test_one_cost_has_the_same_three_meanings() -> None:
    said = {c: _node("a", "m", "flops", c).cost("flops") for c in ("absent", "unknown", "S", 0, 5)}
    assert said == {"absent": 0, "unknown": None, "S": None, 0: 0, 5: 5}


def test_what_belongs_to_a_module_is_summed_over_modules() -> None:
    nodes = [_node(s, m, "params", 3) for s, m in product("ab", "mn")]
    assert (total(nodes, "params"), known_part(nodes, "params")) == (6, 6)
    assert total([*nodes, _node("a", "k", "params", "unknown")], "params") is None


def test_a_counter_that_has_no_row_for_a_norm_is_not_unknown() -> None:
    rows = (CostNode("s", "c", "proj", "linear", {"flops": 8}), CostNode("s", "c", "norm", "norm", {"vector_flops": 5}))
    assert CounterCall("s", "c", rows).value == 8
    assert CounterCall("s", "c", (*rows, CostNode("s", "c", "odd", "odd", {"flops": None}))).value is None


_SOURCES = sorted(Path(costproof.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("room", sorted({p.relative_to(_SOURCES[0].parent).parts[0] for p in _SOURCES}))
def test_costs_are_summed_in_one_place(room: str) -> None:
    """Nothing but ``ledger/node.py`` may say what an absent cost means, or add costs up."""
    root = Path(costproof.__file__).parent
    found = []
    for path in (p for p in _SOURCES if p.relative_to(root).parts[0] == room and p != root / "ledger" / "node.py"):
        source = path.read_text("utf-8")
        if "CostNode" not in source and ".nodes" not in source:
            continue  # a table of costs by metric is no ledger
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and node.attr == "get" and _is_costs(node.value):
                found.append(f"{path}:{node.lineno}: .costs.get")
            adds = isinstance(node, ast.AugAssign) or (isinstance(node, ast.Call) and _is_sum(node.func))
            if adds and any(isinstance(x, ast.Subscript) and _is_costs(x.value) for x in ast.walk(node)):
                found.append(f"{path}: {ast.unparse(node)}")
    assert not found


def _is_sum(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in ("sum", "exact_sum", "total")


def _is_costs(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "costs"


def test_an_operator_without_a_rule_leaves_the_sums_of_its_stage_open() -> None:
    nodes = (
        CostNode("a", "x", "m", "linear", {"flops": 8, "vector_flops": 1}),
        CostNode("b", "x", "n", "linear", {"flops": 5, "vector_flops": 2}),
        CostNode("a", "", "m", "", {"params": 3}),
    )
    known = Ledger("static", nodes, ("flops", "vector_flops", "params"), ("a", "b"))
    assert (known.total("flops"), known.stage_total("a", "flops")) == (13, 8)
    found = replace(known, unknown_ops=(UnknownOp("odd", "a", "m", 1, None, "no rule"),))
    assert [found.total(m) for m in ("flops", "vector_flops", "params")] == [None, None, 3]
    assert [found.stage_total(s, "flops") for s in ("a", "b")] == [None, 5]
    assert known_part(found.nodes, "flops") == 13
