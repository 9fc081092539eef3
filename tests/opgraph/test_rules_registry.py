"""Names, registration, clashes, and operators that nobody rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from costproof import plugins
from costproof.foreign import skipped
from costproof.ledger.errors import BadInput
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, OpCall
from costproof.opgraph.rules import registry
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.names import canonical, source_kind
from costproof.opgraph.rules.registry import UnknownCost, cost_of, graph_transform, operator_rule, rule_table
from tests.support.opcalls import call, counted, value


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("aten.linear.default", "linear"), ("aten::linear", "linear"), ("torch.nn.functional.linear", "linear"),
        ("torch.ops.aten.linear.default", "linear"), ("linear", "linear"),
        ("aten.add_.Tensor", "add"), ("__radd__", "add"), ("__iadd__", "add"), ("__rsub__", "rsub"),
        ("__matmul__", "matmul"), ("__rmatmul__", "rmatmul"), ("__getitem__", "getitem"), ("__rtruediv__", "div"),
        ("__invert__", "bitwise_not"), ("aten._softmax.default", "_softmax"), ("concat", "cat"),
        ("transformers.grouped_mm_fallback", "transformers.grouped_mm_fallback"),
        ("transformers.grouped_mm_fallback.default", "transformers.grouped_mm_fallback"),
        ("transformers::grouped_mm_fallback", "transformers.grouped_mm_fallback"),
        ("torch.ops.transformers.grouped_mm_fallback.default", "transformers.grouped_mm_fallback"),
    ],
)  # fmt: skip
def test_one_name_per_operator(spelling: str, name: str) -> None:
    assert canonical(spelling) == name


def test_kinds_keep_the_words_of_the_source() -> None:
    assert source_kind("aten.add_.Tensor") == "aten.add_"
    assert source_kind("scaled_dot_product_attention") == "scaled_dot_product_attention"
    assert source_kind("transformers.grouped_mm_fallback.default") == "transformers.grouped_mm_fallback"


@pytest.fixture
def clean() -> Iterator[None]:
    yield
    registry.unregister("mylib.fused", "mylib.other")


@pytest.mark.usefixtures("clean")
def test_a_rule_of_ones_own() -> None:
    op = call("mylib.fused.default", [value(2, 3)], [value(2, 5)])
    assert isinstance(cost_of(op), UnknownCost)

    @operator_rule("mylib.fused")
    def fused(op: OpCall) -> OpCost:
        """Six, whatever it does."""
        return OpCost(flops=6, role="matmul")

    assert counted(op).flops == 6
    info = next(r for r in rule_table() if r.operator == "mylib.fused")
    assert info.summary == "Six, whatever it does."
    assert info.owner.endswith("fused")


@pytest.mark.usefixtures("clean")
def test_a_clash_names_both_owners() -> None:
    with pytest.raises(BadInput) as caught:
        operator_rule("mylib.fused", "aten.linear.default", owner="mylib.rules")(lambda op: OpCost())
    message = str(caught.value)
    assert "two rules for one operator" in message
    assert "linear" in message
    assert "costproof.opgraph.rules.matmul.linear" in message
    assert "mylib.rules" in message
    # nothing of the refused registration stays
    assert isinstance(cost_of(call("mylib.fused", [value(2)], [value(2)])), UnknownCost)


@pytest.mark.usefixtures("clean")
def test_other_distributions_add_rules_when_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def register() -> None:
        operator_rule("mylib.other", owner="mylib")(lambda op: OpCost(flops=1))

    offered(monkeypatch, register)
    assert counted(call("mylib.other", [value(2)], [value(2)])).flops == 1


@pytest.mark.usefixtures("clean")
def test_a_rule_of_the_user_may_refuse_a_call() -> None:
    @operator_rule("mylib.fused")
    def fused(op: OpCall) -> OpCost:
        """Count nothing."""
        raise Uncountable("only the fused form has a count", bound=7)

    found = cost_of(call("mylib.fused", [value(2)], [value(2)]))
    assert found == UnknownCost("only the fused form has a count", 7)


def test_a_broken_distribution_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no such thing")

    skipped()  # forget what other tests have skipped
    offered(monkeypatch, fail)
    assert counted(call("linear", [value(2, 3), value(4, 3)], [value(2, 4)])).flops == 2 * 2 * 3 * 4
    (error,) = skipped()
    assert error.where == "mine = mylib:rules"
    assert "no such thing" in str(error.got)
    monkeypatch.undo()
    registry._load.cache_clear()


def offered(monkeypatch: pytest.MonkeyPatch, load: Callable[[], None]) -> None:
    """A distribution of which the import of a module does this."""
    point = SimpleNamespace(name="mine", value="mylib:rules", module="mylib", dist=None, load=load)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == "costproof.rules" else [])
    registry._load.cache_clear()


def test_a_transform_is_applied_before_costs_and_keeps_the_order() -> None:
    """A rule file may bring one: here every second of two equal products vanishes."""
    ops = tuple(call(name, [value(2, 3), value(3, 5)], [value(2, 5)], module=name) for name in ("mm", "matmul", "mm"))
    graph = Graph(ops, ())

    @graph_transform
    def without_matmul(graph: Graph) -> Graph:
        return replace(graph, ops=tuple(op for op in graph.ops if op.name != "matmul"))

    try:
        found = cost_graph(graph)
    finally:
        registry.unregister(f"{__name__}.{without_matmul.__qualname__}")
    assert found.graph.ops == (ops[0], ops[2])
    assert [c.flops for c in found.costs if isinstance(c, OpCost)] == [2 * 2 * 5 * 3] * 2
    assert cost_graph(graph).graph.ops == ops


def test_an_operator_without_a_rule_is_unknown_and_unbounded() -> None:
    for op in (call("aten.mystery.default", [value(3, 16)], [value(3, 9)]), call("aten.mystery.default", [], [])):
        assert cost_of(op) == UnknownCost("no rule for this operator", None)


def test_every_rule_says_how_it_counts() -> None:
    table = rule_table()
    assert len({r.operator for r in table}) == len(table)
    assert all(r.summary and r.owner for r in table)
