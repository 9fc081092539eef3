from __future__ import annotations

from dataclasses import replace

from costproof.graph.account import account
from costproof.graph.active import active_elements
from costproof.graph.costed import costed
from costproof.graph.graph import Graph, ModuleCall, OpCall, Value
from costproof.graph.rules.experts import looped


def value(name: str, *shape: int, origin: str = "op", dtype: str = "float32") -> Value:
    return Value(name, shape, dtype, origin, name if origin == "param" else "")


STACK = value("w", 4, 6, 5, origin="param")
"""Four experts, 5 -> 6."""
TOKENS = value("x", 3, 5, origin="input")


def turn(expert: int, rows: int) -> tuple[OpCall, ...]:
    """One expert of the loop: its rows, its matrix, their product."""
    index = value(f"i{expert}", origin="input", dtype="int64")
    chosen, picked = value(f"x{expert}", rows, 5), value(f"w{expert}", 6, 5)
    which = value(f"t{expert}", rows, origin="input", dtype="int64")
    return (
        OpCall(f"rows{expert}", "__getitem__", "experts", 1, (TOKENS, which), (chosen,)),
        OpCall(f"pick{expert}", "__getitem__", "experts", 1, (STACK, index), (picked,)),
        OpCall(f"product{expert}", "linear", "experts", 1, (chosen, picked), (value(f"y{expert}", rows, 6),)),
    )


GRAPH = Graph((*turn(1, 3), *turn(2, 2), *turn(3, 1)), (), (), (ModuleCall("experts", 1, None, "Experts"),))
"""Three tokens, two experts each: experts 1, 2 and 3 get 3, 2 and 1 rows, expert 0 none."""


def test_a_loop_is_a_grouped_product() -> None:
    found = account(costed(GRAPH), lambda module, call: ("stage", "once"))
    costs = {n.kind: n.costs for n in found.nodes if n.module}
    assert found.unknown == ()
    # Six rows of 5 -> 6.
    assert costs["expert_linear"] == {"flops": 2 * 6 * 5 * 6}
    # Six rows could meet six matrices; there are four: the bound of any kernel, not the three that were hit.
    assert costs[""]["weight_read_bytes"] == 4 * 6 * 5 * 4
    assert active_elements(costed(GRAPH)) == {"w": 2 * 6 * 5}


def test_fewer_rows_than_experts() -> None:
    found = account(costed(replace(GRAPH, ops=turn(1, 2))), lambda module, call: ("stage", "once"))
    assert {n.kind: n.costs for n in found.nodes if n.module}[""]["weight_read_bytes"] == 2 * 6 * 5 * 4


def test_what_comes_back_from_the_activation_is_not_taken_for_the_tokens() -> None:
    # The second stack reads 6 wide rows, one piece for each expert, and nothing else is as wide but the tokens' own.
    down = value("v", 4, 5, 6, origin="param")
    ops = []
    for expert, rows in ((1, 3), (2, 2), (3, 1)):
        back = value(f"a{expert}", rows, 6)
        picked, index = value(f"v{expert}", 5, 6), value(f"j{expert}", origin="input", dtype="int64")
        ops += [
            OpCall(f"act{expert}", "silu", "experts.act", expert, (value(f"y{expert}", rows, 6),), (back,)),
            OpCall(f"pickv{expert}", "__getitem__", "experts", 1, (down, index), (picked,)),
            OpCall(f"back{expert}", "linear", "experts", 1, (back, picked), (value(f"z{expert}", rows, 5),)),
        ]
    assert active_elements(costed(replace(GRAPH, ops=(*GRAPH.ops, *ops)))) == {"w": 2 * 6 * 5, "v": 2 * 6 * 5}


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
    found = account(costed(graph), lambda module, call: ("stage", "once"))
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
    graph = costed(Graph(tuple(ops), (), (), tuple(calls)))
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
        found = active_elements(costed(replace(GRAPH, ops=(*GRAPH.ops, *ops, *added))))
        assert found == {"w": 2 * 6 * 5, "b": 2 * 6}
