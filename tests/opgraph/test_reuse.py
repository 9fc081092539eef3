"""Bytes of a graph under three models of reuse: by hand, and in order on any graph. bfloat16: 2 bytes each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from costproof.algebra.symbols import sym
from costproof.ledger.callgraph import ReuseBytes
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, OpCall, Value
from costproof.opgraph.reuse import floors, partly_read, reuse_bytes
from tests.support.opcalls import call, value


def bf(*shape: int, origin: str = "op", name: str = "") -> Value:
    return value(*shape, dtype="bfloat16", origin=origin, name=name)


def test_an_mlp_in_one_module_and_in_three() -> None:
    x, w, v = bf(4, 8, origin="input"), bf(16, 8, origin="param", name="w"), bf(8, 16, origin="param", name="v")
    y, a, z = bf(4, 16), bf(4, 16), bf(4, 8)
    # 64 bytes in and out, 256 for each weight; between them 128 are written and read, twice.
    for modules, fused in ((("m", "m", "m"), 640), (("a", "b", "b"), 640 + 256), (("a", "b", "c"), 640 + 512)):
        one, two, three = modules
        ops = (
            call("linear", [x, w], [y], module=one),
            call("relu", [y], [a], module=two),
            call("linear", [a, v], [z], module=three),
        )
        work = cost_graph(Graph(ops, (z,)))
        assert reuse_bytes(work, ()) == ReuseBytes(floor=640, fused=fused, unfused=640 + 512)
        assert [t.bytes for t in work.alone.values()] == [64 + 256 + 128, 256, 128 + 256 + 64]


def test_a_step_with_a_cache() -> None:
    past, new, joined = bf(6, 8, origin="cache"), bf(1, 8), bf(7, 8)
    x, out = bf(1, 8, origin="input"), bf(1, 8)
    ops = (
        call("exp", [x], [new], module="attn.k"),
        call("cat", [past, new], [joined], module="attn"),
        call("scaled_dot_product_attention", [x, joined, joined], [out], module="attn"),
    )
    work = cost_graph(Graph(ops, (out,), (joined,)))
    # Once: the past 96, the row in 16 and out 16, a row of 16 appended. The keys' row crosses a border, 16 twice, and
    # the row in is read by both modules. On its own, joining writes 112 and attention reads them.
    assert reuse_bytes(work, (past,)) == ReuseBytes(floor=144, fused=144 + 32 + 16, unfused=144 + 32 + 16 + 224)


def test_what_crosses_the_border_of_a_stage() -> None:
    x, w, y, z = bf(4, 8, origin="input", name="x"), bf(16, 8, origin="param", name="w"), bf(4, 16), bf(4, 16)
    # A trace has one buffer twice, as the whole and, the second time, as a half.
    table, again = (Value(label, (4, 16), "bfloat16", "buffer", "table") for label in ("buffer_1", "buffer_2"))
    half, out = bf(2, 16), bf(4, 16)
    ops = (
        call("linear", [x, w], [y], module="tower"),
        call("__add__", [y, table], [z], module="head"),
        call("__getitem__", [again], [half], module="head"),
        call("__mul__", [z, half], [out], module="head"),
    )
    work = cost_graph(Graph(ops, (out,)))
    # The tower reads 64 and a weight of 256 and writes 128; the head reads that and the table, and writes as much.
    stages = ["tower", "head", "head", "head"]
    assert floors(work, stages) == {"tower": 64 + 256 + 128, "head": 128 + 128 + 128}
    # As one stage they hand nothing on.
    assert floors(work, [""] * 4) == {"": 64 + 256 + 128 + 128}
    # What another part of the stage gives, or takes, does not cross its border.
    assert floors(work, [""] * 4, {"x"}) == {"": 256 + 128 + 128}
    assert floors(work, [""] * 4, {"x", "return.0"}) == {"": 256 + 128}
    assert floors(work, [""] * 4, {"return.1"}) == floors(work, [""] * 4)
    # Nor does a weight that another part reads whole: it is read there.
    assert floors(work, [""] * 4, {"w"}) == {"": 64 + 128 + 128}


def test_a_table_is_read_once_however_often_rows_are_looked_up() -> None:
    table, ids = bf(4, 8, origin="param", name="table"), value(10, dtype="int64", origin="input")
    rows = bf(10, 8)
    work = cost_graph(Graph((call("embedding", [table, ids], [rows], module="m"),), (rows,)))
    # Ten rows of 16 bytes are looked up and written; the table has four.
    assert floors(work, [""]) == {"": 4 * 16 + 10 * 16}
    assert work.traffic["m", 1].weight_read_bytes == 10 * 16
    assert partly_read(work) == {"table": (10 * 16, 4 * 16)}
    # Of B rows: as many as there are, or all four.
    b = sym("B")
    some = replace(rows, shape=(b, 8))
    few = cost_graph(Graph((call("embedding", [table, replace(ids, shape=(b,))], [some], module="m"),), (some,)))
    assert floors(few, [""]) == {"": 16 * sympy.Min(4, b) + 16 * b}


def test_two_readers_of_halves_read_the_whole_once() -> None:
    x, left, right, y, z = bf(4, 8, origin="input"), bf(4, 4), bf(4, 4), bf(4, 4), bf(4, 4)
    ops = (
        call("chunk", [x], [left, right], module="m"),
        call("neg", [left], [y], module="a"),
        call("neg", [right], [z], module="b"),
    )
    assert reuse_bytes(cost_graph(Graph(ops, (y, z))), ()) == ReuseBytes(floor=128, fused=128, unfused=128)


@pytest.mark.parametrize("name", ["copy_", "__setitem__"])
def test_what_is_written_in_parts_is_read_whole(name: str) -> None:
    x, empty, y = bf(2, 8, origin="input"), bf(4, 8), bf(4, 8)
    halves, done = (bf(2, 8), bf(2, 8)), (bf(2, 8), bf(2, 8))
    ops = (
        call("new_empty", [x], [empty], module="m"),
        call("slice", [empty], [halves[0]], module="m"),
        call(name, [halves[0], x], [done[0]], module="m"),
        call("slice", [empty], [halves[1]], module="m"),
        call(name, [halves[1], x], [done[1]], module="m"),
        call("neg", [empty], [y], module="m"),
    )
    work = cost_graph(Graph(ops, (y,)))
    read = [t.bytes for t in work.alone.values()]
    # 32 are read for each half; the whole, 64, is written once; negation reads it and writes 64.
    assert sorted(read) == sorted([32, 32, 64, 64 + 64])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Operators that read any of what is there, as it is, in part or cast, in any of three modules."""
    values = [bf(4, 8, origin=o, name=o) for o in ("input", "param", "cache")]
    ops: list[OpCall] = []
    for _ in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from(["add", "neg", "slice", "to", "cat"]))
        module = draw(st.sampled_from(["a", "b", "c"]))
        read = [draw(st.sampled_from(values)) for _ in range(2 if name in ("add", "cat") else 1)]
        rows = {"slice": 2, "cat": sum(int(v.shape[0]) for v in read)}.get(name, max(int(v.shape[0]) for v in read))
        dtype = draw(st.sampled_from(["float32", "bfloat16"])) if name == "to" else "bfloat16"
        made = value(rows, 8, dtype=dtype)
        ops.append(call(name, read, [made], module=module))
        values.append(made)
    kept = draw(st.lists(st.sampled_from(values), max_size=3))
    return Graph(tuple(ops), (values[-1], *kept))


@settings(max_examples=60)
@given(graphs())
def test_a_larger_region_hides_bytes_and_adds_none(graph: Graph) -> None:
    found = reuse_bytes(cost_graph(graph), ())
    assert found.floor <= found.fused <= found.unfused
