from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.opgraph.account import account
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, ModuleCall, OpCall, Value
from costproof.opgraph.rules.experts import looped
from costproof.opgraph.tally import active_elements


def value(name: str, *shape: int, origin: str = "op", dtype: str = "float32") -> Value:
    return Value(name, shape, dtype, origin, name if origin == "param" else "")


STACK = value("w", 4, 6, 5, origin="param")
"""Four experts, 5 -> 6."""
TOKENS = value("x", 3, 5, origin="input")
MASK = value("mask", 4, 3, origin="input", dtype="int64")
"""Which of three tokens meet which of four experts."""


def turn(expert: int, rows: int) -> tuple[OpCall, ...]:
    """One expert of the loop: where it has rows, its rows, its matrix, their product."""
    index, hit = value(f"i{expert}", dtype="int64"), value(f"h{expert}", 3, 1, dtype="int64")
    chosen, picked = value(f"x{expert}", rows, 5), value(f"w{expert}", 6, 5)
    which, row = value(f"t{expert}", rows, dtype="int64"), value(f"m{expert}", 3, dtype="int64")
    return (
        OpCall(f"hit{expert}", "nonzero", "experts", 1, (MASK,), (hit,)),
        OpCall(f"one{expert}", "__getitem__", "experts", 1, (hit,), (index,), {"key": [expert, 0]}),
        OpCall(f"row{expert}", "__getitem__", "experts", 1, (MASK, index), (row,)),
        OpCall(f"where{expert}", "where", "experts", 1, (row,), (which,)),
        OpCall(f"rows{expert}", "__getitem__", "experts", 1, (TOKENS, which), (chosen,)),
        OpCall(f"pick{expert}", "__getitem__", "experts", 1, (STACK, index), (picked,)),
        OpCall(f"product{expert}", "linear", "experts", 1, (chosen, picked), (value(f"y{expert}", rows, 6),)),
    )


GRAPH = Graph((*turn(1, 3), *turn(2, 2), *turn(3, 1)), (), (), (ModuleCall("experts", 1, None, "Experts"),))
"""Three tokens, two experts each: experts 1, 2 and 3 get 3, 2 and 1 rows, expert 0 none."""


def test_a_loop_is_a_grouped_product() -> None:
    found = account(cost_graph(GRAPH), lambda module, call: ("stage", "once"))
    costs = {n.kind: n.costs for n in found.nodes if n.module}
    assert found.unknown == ()
    # Six rows of 5 -> 6.
    assert costs["expert_linear"] == {"flops": 2 * 6 * 5 * 6}
    # Six rows could meet six matrices; there are four: the bound of any kernel, not the three that were hit.
    assert costs[""]["weight_read_bytes"] == 4 * 6 * 5 * 4
    assert active_elements(cost_graph(GRAPH)) == {"w": 2 * 6 * 5}


def test_fewer_rows_than_experts() -> None:
    found = account(cost_graph(replace(GRAPH, ops=turn(1, 2))), lambda module, call: ("stage", "once"))
    assert {n.kind: n.costs for n in found.nodes if n.module}[""]["weight_read_bytes"] == 2 * 6 * 5 * 4


def test_what_comes_back_from_the_activation_is_not_taken_for_the_tokens() -> None:
    # The second stack reads 6 wide rows, one piece for each expert, and nothing else is as wide but the tokens' own.
    down = value("v", 4, 5, 6, origin="param")
    ops = []
    for expert, rows in ((1, 3), (2, 2), (3, 1)):
        back = value(f"a{expert}", rows, 6)
        picked, index = value(f"v{expert}", 5, 6), value(f"i{expert}", dtype="int64")
        ops += [
            OpCall(f"act{expert}", "silu", "experts.act", expert, (value(f"y{expert}", rows, 6),), (back,)),
            OpCall(f"pickv{expert}", "__getitem__", "experts", 1, (down, index), (picked,)),
            OpCall(f"back{expert}", "linear", "experts", 1, (back, picked), (value(f"z{expert}", rows, 5),)),
        ]
    assert active_elements(cost_graph(replace(GRAPH, ops=(*GRAPH.ops, *ops)))) == {"w": 2 * 6 * 5, "v": 2 * 6 * 5}


def test_what_is_no_loop_stays_as_it_is() -> None:
    plain = OpCall("p", "linear", "m", 1, (TOKENS, value("k", 6, 5, origin="param")), (value("q", 3, 6),))
    graph = Graph((plain,), ())
    assert looped(graph) is graph
    # Somebody else reads the matrix too: then it is a tensor of its own.
    spy = OpCall("s", "__add__", "experts", 1, (value("w1", 6, 5),), (value("s", 6, 5),))
    kept = looped(replace(GRAPH, ops=(*GRAPH.ops, spy)))
    assert [op.name for op in kept.ops if op.label in ("pick1", "product1")] == ["__getitem__", "linear"]
    assert [op.name for op in kept.ops if op.label in ("pick2", "product2")] == ["expert_matrix", "expert_linear"]


def test_a_matrix_that_the_code_picks_is_read_alone() -> None:
    # Layer 1 of a stack for all three rows, then layer 2 for what came out; and rows that a list of places chose.
    square, places = value("k", 4, 5, 5, origin="param"), value("places", 2, origin="input", dtype="int64")
    first, second, some = value("k1", 5, 5), value("k2", 5, 5), value("some", 2, 5)
    ops = (
        OpCall("pick1", "aten.select.int", "m", 1, (square,), (first,), {"dim": 0, "index": 1}),
        OpCall("product1", "matmul", "m", 1, (TOKENS, first), (value("y1", 3, 5),)),
        OpCall("pick2", "aten.select.int", "m", 1, (square,), (second,), {"dim": 0, "index": 2}),
        OpCall("some", "__getitem__", "m", 1, (value("y1", 3, 5), places), (some,)),
        OpCall("product2", "matmul", "m", 1, (some, second), (value("y2", 2, 5),)),
    )
    graph = Graph(ops, (), (), (ModuleCall("m", 1, None, "Stacked"),))
    assert looped(graph) is graph
    found = account(cost_graph(graph), lambda module, call: ("stage", "once"))
    costs = {n.kind: n.costs for n in found.nodes if n.module}
    # Two matrices of 25 numbers; (3 + 2) rows of 5 -> 5.
    assert costs[""]["weight_read_bytes"] == 2 * 25 * 4
    assert costs["matmul"] == {"flops": 2 * 5 * 5 * 5}


def test_matrices_of_one_long_parameter_are_multiplied_elsewhere() -> None:
    # One parameter holds the four matrices; a turn picks one, and another module turns it and casts it.
    long = value("w", 24, 5, origin="param")
    scores, best = value("scores", 3, 4), value("best", 3, 2, dtype="int64")
    ops = [OpCall("route", "aten.topk.default", "router", 1, (scores,), (value("top", 3, 2), best))]
    for turn, (expert, rows) in enumerate(((1, 3), (2, 2), (3, 1)), start=1):
        stack, picked, turned = value(f"s{turn}", 4, 6, 5), value(f"p{turn}", 6, 5), value(f"t{turn}", 5, 6)
        cast, chosen = value(f"c{turn}", 5, 6, dtype="float64"), value(f"x{turn}", rows, 5)
        which = value(f"which{turn}", rows, dtype="int64")
        ops += [
            OpCall(f"which{turn}", "aten.nonzero.default", "experts", 1, (best,), (which,)),
            OpCall(f"rows{turn}", "__getitem__", "experts", 1, (TOKENS, which), (chosen,)),
            OpCall(f"view{turn}", "aten.view.default", "experts", 1, (long,), (stack,)),
            OpCall(f"pick{turn}", "aten.select.int", "experts", 1, (stack,), (picked,), {"dim": 0, "index": expert}),
            OpCall(f"turn{turn}", "aten.numpy_T.default", "experts.glu", turn, (picked,), (turned,)),
            OpCall(f"assert{turn}", "aten._assert_tensor_metadata.default", "experts.glu", turn, (turned,), ()),
            OpCall(f"cast{turn}", "aten.to.dtype", "experts.glu", turn, (turned,), (cast,)),
            OpCall(f"mm{turn}", "aten.matmul.default", "experts.glu", turn, (chosen, cast), (value("y", rows, 6),)),
        ]
    calls = [ModuleCall("router", 1, None, "Router"), ModuleCall("experts", 1, None, "Experts")]
    calls += [ModuleCall("experts.glu", turn, ("experts", 1), "Glu") for turn in (1, 2, 3)]
    graph = cost_graph(Graph(tuple(ops), (), (), tuple(calls)))
    found = account(graph, lambda module, call: ("stage", "once"))
    costs = {(n.module, n.kind): n.costs for n in found.nodes}
    # The module that picks reads, at most all four matrices for six rows; the one that multiplies reads rows of 5.
    assert costs["experts", ""]["weight_read_bytes"] == 4 * 6 * 5 * 4
    assert costs["experts.glu", "expert_linear"] == {"flops": 2 * 6 * 5 * 6}
    assert costs["experts.glu", ""]["input_bytes"] == 6 * 5 * 4
    assert "weight_read_bytes" not in costs["experts.glu", ""]
    # Six rows for three tokens: two matrices of four.
    assert active_elements(graph) == {"w": 2 * 6 * 5}


def test_a_row_for_each_expert_beside_its_matrix() -> None:
    # A bias is looked up in a run, and is a view in an export: two of four rows of 6 either way.
    bias = value("b", 4, 6, origin="param")
    for name, index in (("__getitem__", (value("i", origin="input", dtype="int64"),)), ("aten.select.int", ())):
        ops = [
            OpCall(f"bias{e}", name, "experts", 1, (bias, *index), (value(f"b{e}", 6),), {"dim": 0}) for e in (1, 2, 3)
        ]
        added = [
            OpCall(f"add{e}", "add", "experts", 1, (value(f"y{e}", r, 6), value(f"b{e}", 6)), (value(f"z{e}", r, 6),))
            for e, r in ((1, 3), (2, 2), (3, 1))
        ]
        found = active_elements(cost_graph(replace(GRAPH, ops=(*GRAPH.ops, *ops, *added))))
        assert found == {"w": 2 * 6 * 5, "b": 2 * 6}


def plain_pick(*, index: Value | None = None) -> tuple[OpCall, ...]:
    """Matrix 0 of the stack for two chosen rows of the tokens."""
    chosen, picked = value("chosen", 2, 5), value("picked", 6, 5)
    pick = (
        OpCall("pick", "__getitem__", "m", 1, (STACK,), (picked,), {"key": 0})
        if index is None
        else OpCall("pick", "__getitem__", "m", 1, (STACK, index), (picked,))
    )
    return pick, OpCall("product", "linear", "m", 1, (chosen, picked), (value("y", 2, 6),))


SCORES, FOUND = value("scores", 2, 3, origin="input"), value("found", 2, dtype="int64")
KEPT = value("kept", 3, dtype="bool")
TASK = value("task", origin="input", dtype="int64")
SORTED = value("sorted", 3, 5)


@pytest.mark.parametrize(
    "before",
    [
        # As many rows as there are rows of scores, whatever the scores are.
        (OpCall("best", "argmax", "m", 1, (SCORES,), (FOUND,)),),
        (OpCall("best", "topk", "m", 1, (SCORES,), (value("top", 2, 1), FOUND)),),
        # A search chose how many rows, but for one matrix of the stack.
        (OpCall("hits", "nonzero", "m", 1, (MASK,), (FOUND,)),),
    ],
)
def test_rows_that_numbers_choose_for_one_matrix(before: tuple[OpCall, ...]) -> None:
    rows = OpCall("rows", "__getitem__", "m", 1, (TOKENS, FOUND), (value("chosen", 2, 5),))
    check_one_matrix(*before, rows, *plain_pick())


def test_rows_under_a_mask_for_one_matrix() -> None:
    kept = OpCall("kept", "__gt__", "m", 1, (value("gate", 3, origin="input"),), (KEPT,), {"other": 0})
    check_one_matrix(
        kept, OpCall("rows", "__getitem__", "m", 1, (TOKENS, KEPT), (value("chosen", 2, 5),)), *plain_pick()
    )


def test_a_matrix_that_a_caller_picks() -> None:
    # The task's number is a tensor; no search made it, and the rows are a part that the code takes.
    rows = OpCall("rows", "__getitem__", "m", 1, (TOKENS,), (value("chosen", 2, 5),), {"key": [slice(0, 2)]})
    check_one_matrix(rows, *plain_pick(index=TASK))


def check_one_matrix(*ops: OpCall) -> None:
    graph = Graph(ops, (), (), (ModuleCall("m", 1, None, "One"),))
    assert looped(graph) is graph
    found = account(cost_graph(graph), lambda module, call: ("stage", "once"))
    costs = {n.kind: n.costs for n in found.nodes if n.module}
    # One matrix of 6 x 5 numbers.
    assert costs[""]["weight_read_bytes"] == 6 * 5 * 4
    assert costs["linear"] == {"flops": 2 * 2 * 6 * 5}


def test_parts_of_sorted_rows() -> None:
    # Tokens in the order of their experts, cut where the data wants: one row for the first, two for the second.
    keys, order = value("keys", 3, origin="input", dtype="int64"), value("order", 3, dtype="int64")
    ops = [
        OpCall("sort", "sort", "m", 1, (keys,), (value("ids", 3, dtype="int64"), order)),
        OpCall("rows", "__getitem__", "m", 1, (TOKENS, order), (SORTED,)),
    ]
    for turn, (expert, rows) in enumerate(((0, 1), (3, 2))):
        part, picked = value(f"p{turn}", rows, 5), value(f"w{turn}", 6, 5)
        ops += [
            OpCall(f"cut{turn}", "split", "m", 1, (SORTED,), (part,)),
            OpCall(f"pick{turn}", "__getitem__", "m", 1, (STACK,), (picked,), {"key": expert}),
            OpCall(f"product{turn}", "linear", "m", 1, (part, picked), (value(f"y{turn}", rows, 6),)),
        ]
    found = account(
        cost_graph(Graph(tuple(ops), (), (), (ModuleCall("m", 1, None, "Cut"),))),
        lambda module, call: ("stage", "once"),
    )
    # Two experts of the stack meet three rows between them: three of four matrices at most.
    assert {n.kind: n.costs for n in found.nodes if n.module}[""]["weight_read_bytes"] == 3 * 6 * 5 * 4


@pytest.mark.parametrize("looked", [True, False])
def test_one_expert_that_a_search_found(looked: bool) -> None:
    # In an export the number of the matrix is the code's own; that it looked at what a search found says whose it is.
    hit, row = value("hit", 1, 1, dtype="int64"), value("row", 3, origin="input", dtype="int64")
    ops = (
        OpCall("hit", "aten.nonzero.default", "m", 1, (MASK,), (hit,)),
        *((OpCall("item", "aten.item.default", "m", 1, (hit,), ()),) if looked else ()),
        OpCall("where", "aten.where.default", "m", 1, (row,), (FOUND,)),
        OpCall("rows", "aten.index.Tensor", "m", 1, (TOKENS, FOUND), (value("chosen", 2, 5),)),
        *plain_pick(),
    )
    found = account(
        cost_graph(Graph(ops, (), (), (ModuleCall("m", 1, None, "E"),))), lambda module, call: ("stage", "once")
    )
    # Another two rows may meet two matrices; without a search it is this one.
    assert {n.kind: n.costs for n in found.nodes if n.module}[""]["weight_read_bytes"] == (1 + looked) * 6 * 5 * 4
