"""A cache belongs to the stage of the module that fills it, where one graph has work of several."""

from __future__ import annotations

from costproof.opgraph.account import cache_nodes
from costproof.opgraph.graph import Graph, OpCall, Value


def test_a_cache_is_kept_where_it_is_filled() -> None:
    # Two tensors of 2 * 3 * 4 and 2 * 5 * 4 elements in bfloat16, of which one held 2 * 1 * 4 before.
    keys, more = Value("k", (2, 3, 4), "bfloat16"), Value("m", (2, 5, 4), "bfloat16")
    before = Value("b", (2, 1, 4), "bfloat16", "cache")
    ops = (
        OpCall("one", "aten.linear.default", "tower.attn", 1, (), (keys,)),
        OpCall("two", "aten.cat.default", "text.attn", 1, (before,), (more,)),
    )
    graph = Graph(ops, (), (keys, more))
    found = cache_nodes(lambda path, call: (path.partition(".")[0], "prompt"), graph, (before,))
    assert {(n.stage, n.module): n.cost("kv_cache_bytes") for n in found if n.cost("kv_cache_bytes")} == {
        ("tower", "tower.attn"): 2 * 3 * 4 * 2,
        ("text", "text.attn"): 2 * 4 * 4 * 2,
    }
    assert {n.stage: n.cost("floor_bytes") for n in found if n.cost("floor_bytes")} == {"tower": 48, "text": 64}


def test_a_state_in_the_place_of_another_is_no_growth() -> None:
    # A layer reads the old state and makes the new one; the stack around it writes that over the old one.
    old, new = Value("old", (2, 3), "float32", "cache"), Value("new", (2, 3), "float32")
    written = Value("written", (2, 3), "float32")
    ops = (
        OpCall("step", "aten.mul.Tensor", "stack.layer", 1, (old,), (new,)),
        OpCall("write", "aten.copy_.default", "stack", 1, (old, new), (written,)),
    )
    assert cache_nodes(lambda path, call: ("text", "step"), Graph(ops, (), (written,)), (old,)) == []


def test_one_module_appends_to_what_another_has_kept() -> None:
    # A first stack keeps two positions of 4 numbers, a second one appends three.
    empty, new = Value("e", (0,), "float32", "const"), Value("n", (2, 4), "float32")
    kept, more, both = (Value(name, (rows, 4), "float32") for name, rows in (("k", 2), ("m", 3), ("b", 5)))
    ops = (
        OpCall("one", "aten.cat.default", "first.attn", 1, (empty, new), (kept,)),
        OpCall("two", "aten.cat.default", "second.attn", 1, (kept, more), (both,)),
    )
    found = cache_nodes(lambda path, call: ("text", "prompt"), Graph(ops, (), (both,)), ())
    grown = {n.module: n.cost("kv_cache_bytes") for n in found if n.cost("kv_cache_bytes")}
    assert grown == {"first.attn": 2 * 4 * 4, "second.attn": 3 * 4 * 4}
