"""Bytes across module borders on little graphs, worked out by hand.

All tensors are bfloat16 (2 bytes) unless a case says otherwise; a (4, 8) tensor is 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import sym
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.regions import RegionTraffic
from costproof.opgraph.rules.sizes import smaller
from tests.support.opcalls import call, value


def bf(*shape: Size, origin: str = "op", name: str = "") -> Value:
    return value(*shape, dtype="bfloat16", origin=origin, name=name)


def traffic(ops: Sequence[OpCall], outputs: Sequence[Value], cache: Sequence[Value] = ()) -> dict[str, RegionTraffic]:
    graph = Graph(tuple(ops), tuple(outputs), tuple(cache))
    found = cost_graph(graph).traffic
    return {f"{module}:{number}" if number > 1 else module: t for (module, number), t in found.items()}


def io(found: dict[str, RegionTraffic], region: str) -> tuple[Size, Size, Size]:
    t = found[region]
    return t.input_bytes, t.output_bytes, t.weight_read_bytes


def test_residual_block() -> None:
    # x -> child: linear(x) -> block: x + child
    x, w, y, z = bf(4, 8, origin="input"), bf(8, 8, origin="param", name="w"), bf(4, 8), bf(4, 8)
    found = traffic([call("linear", [x, w], [y], module="block.child"), call("add", [x, y], [z], module="block")], [z])
    assert io(found, "block.child") == (64, 64, 128)  # reads x; writes y for the block; reads the 8x8 weight
    assert io(found, "block") == (128, 64, 0)  # reads x and y; writes z, the model's output


def test_work_inside_a_region_stays_inside() -> None:
    # y = x * x; z = exp(y), both in one module: y never crosses a border
    x, y, z = bf(4, 8, origin="input"), bf(4, 8), bf(4, 8)
    found = traffic([call("mul", [x, x], [y]), call("exp", [y], [z])], [z])
    assert io(found, "m") == (64, 64, 0)  # x once, although it is an operand twice


def test_what_a_cache_held_is_read_apart() -> None:
    # past (3, 8) of the cache and new (1, 8) of another module, joined and read; a second module reads two past rows
    past, x, new, keys, part = bf(3, 8, origin="cache"), bf(1, 8, origin="input"), bf(1, 8), bf(4, 8), bf(2, 8)
    y, z = bf(4, 8), bf(2, 8)
    found = traffic(
        [
            call("exp", [x], [new], module="k"),
            call("cat", [past, new], [keys]),
            call("exp", [keys], [y]),
            call("aten.slice.Tensor", [past], [part], module="n"),
            call("neg", [part], [z], module="n"),
        ],
        [y, z],
        cache=[keys],
    )
    assert (io(found, "m"), found["m"].kv_read_bytes) == ((16, 64, 0), 48)
    assert (io(found, "n"), found["n"].kv_read_bytes) == ((0, 32, 0), 32)
    assert found["k"].kv_read_bytes == 0


def test_slice_of_a_root_reads_only_what_it_shows() -> None:
    # producer makes (4, 8); consumer reads two columns of it: 4*2*2 bytes. The producer writes it whole.
    x, y = bf(4, 8, origin="input"), bf(4, 8)
    part, z = bf(4, 2), bf(4, 2)
    found = traffic(
        [
            call("exp", [x], [y], module="a"),
            call("aten.slice.Tensor", [y], [part], module="b"),
            call("neg", [part], [z], module="b"),
        ],
        [z],
    )
    assert io(found, "a") == (64, 64, 0)
    assert io(found, "b") == (16, 16, 0)


def test_chunk_into_two_readers() -> None:
    # y (4, 8) is chunked: one half goes to act, both halves (one of them activated) meet in m
    x, y = bf(4, 8, origin="input"), bf(4, 8)
    gate, up, acted, z = bf(4, 4), bf(4, 4), bf(4, 4), bf(4, 4)
    found = traffic(
        [
            call("exp", [x], [y]),
            call("chunk", [y], [gate, up]),
            call("silu", [gate], [acted], module="m.act"),
            call("mul", [acted, up], [z]),
        ],
        [z],
    )
    assert io(found, "m.act") == (32, 32, 0)  # half of y
    assert io(found, "m") == (64 + 32, 64 + 32, 0)  # x and act's result; y (read by act: written whole) and z


def test_two_views_of_one_root_are_at_most_the_root() -> None:
    # rotary: q, its first half and its second half are all read: 64 + 32 + 32, but q is only 64
    q = bf(4, 8, origin="input")
    first, second, negated, joined, z = bf(4, 4), bf(4, 4), bf(4, 4), bf(4, 8), bf(4, 8)
    found = traffic(
        [
            call("slice", [q], [first]),
            call("slice", [q], [second]),
            call("neg", [second], [negated]),
            call("cat", [negated, first], [joined]),
            call("mul", [q, joined], [z]),
        ],
        [z],
    )
    assert io(found, "m") == (64, 64, 0)


def test_expanded_view_reads_the_root_once() -> None:
    # (1, 8) expanded to (4, 8) before it is added: 16 bytes, not 64
    x, b, wide, z = bf(4, 8, origin="input"), bf(1, 8, origin="input"), bf(4, 8), bf(4, 8)
    found = traffic([call("expand", [b], [wide]), call("add", [x, wide], [z])], [z])
    assert io(found, "m") == (64 + 16, 64, 0)


def test_cast_on_the_way_in_counts_the_smaller_side() -> None:
    x, wide, y = bf(4, 8, origin="input"), value(4, 8), value(4, 8)
    found = traffic([call("to", [x], [wide]), call("exp", [wide], [y])], [y])
    assert io(found, "m") == (64, 128, 0)  # x is stored in 2 bytes; the result is float32


def test_slice_cast_to_a_wider_type_is_read_in_its_own() -> None:
    # two columns of a bfloat16 root (4, 8), computed on in float32: 4*2 elements of 2 bytes
    x, part, wide, y = bf(4, 8, origin="input"), bf(4, 2), value(4, 2), value(4, 2)
    ops = [call("aten.slice.Tensor", [x], [part]), call("to", [part], [wide]), call("exp", [wide], [y])]
    assert io(traffic(ops, [y]), "m") == (16, 32, 0)
    # the same as one complex number of two float32 each: they show the same 8 elements
    pair, z = value(4, 1, dtype="complex64"), value(4, 1, dtype="complex64")
    ops = [*ops[:2], call("view_as_complex", [wide], [pair]), call("mul", [pair, pair], [z])]
    assert io(traffic(ops, [z]), "m") == (16, 32, 0)


def test_cast_on_the_way_out_fuses_into_the_producer() -> None:
    # float32 result, seen outside as bfloat16 by one reader
    x, y = bf(4, 8, origin="input"), value(4, 8)
    narrow, z = bf(4, 8), bf(4, 8)
    ops = [
        call("exp", [x], [y], module="a"),
        call("to", [y], [narrow], module="a"),
        call("neg", [narrow], [z], module="b"),
    ]
    assert io(traffic(ops, [z]), "a") == (64, 64, 0)
    assert io(traffic(ops, [z]), "b") == (64, 64, 0)
    # a second reader that sees all 4 bytes makes them all be written
    wide = [*ops, call("exp", [y], [value(4, 8)], module="c")]
    assert io(traffic(wide, [z]), "a") == (64, 128, 0)
    # as the model's own output it is seen through the cast too
    assert io(traffic(ops[:2], [narrow]), "a") == (64, 64, 0)


def test_a_whole_and_its_parts_seen_through_a_cast_are_no_more_than_the_whole_in_that_size() -> None:
    # float32 root of 128 bytes; the reader sees it as bfloat16: all of it (64 bytes), and one half of it besides
    x, y = bf(4, 8, origin="input"), value(4, 8)
    narrow, half, z = bf(4, 8), bf(4, 4), bf(4, 4)
    ops = [
        call("exp", [x], [y], module="a"),
        call("to", [y], [narrow], module="a"),
        call("neg", [narrow], [bf(4, 8)], module="b"),
        call("aten.slice.Tensor", [narrow], [half], module="b"),
        call("neg", [half], [z], module="b"),
    ]
    assert io(traffic(ops, [z]), "b") == (64, 32, 0)


def test_view_passed_through_a_module_is_no_work_of_it() -> None:
    # b only reshapes a's result for c: b has no traffic
    x, y, seen, z = bf(4, 8, origin="input"), bf(4, 8), bf(32), bf(32)
    found = traffic(
        [
            call("exp", [x], [y], module="a"),
            call("reshape", [y], [seen], module="b"),
            call("neg", [seen], [z], module="c"),
        ],
        [z],
    )
    assert "b" not in found
    assert io(found, "a") == (64, 64, 0)
    assert io(found, "c") == (64, 64, 0)


def test_an_unread_result_is_not_written() -> None:
    x, scores, best, where, z = bf(4, 8, origin="input"), bf(4, 8), bf(4, 2), value(4, 2, dtype="int64"), bf(4, 2)
    found = traffic(
        [
            call("softmax", [x], [scores], module="gate"),
            call("topk", [scores], [best, where], module="gate"),
            call("neg", [best], [z], module="experts"),
            call("add", [where, where], [value(4, 2, dtype="int64")], module="experts"),
        ],
        [z],
    )
    # scores stay inside; best goes out (4*2*2); indices are no activations
    assert io(found, "gate") == (64, 16, 0)
    assert io(found, "experts") == (16, 16, 0)


def test_parameters_are_weights_not_inputs() -> None:
    # read twice in one call: once; read through a cast: its own 2 bytes; read by two modules: by each
    x, w, wide, y, z, u = (
        bf(4, 8, origin="input"), bf(8, 8, origin="param", name="w"), value(8, 8), bf(4, 8), value(4, 8), bf(4, 8),
    )  # fmt: skip
    found = traffic(
        [
            call("linear", [x, w], [y], module="a"),
            call("to", [w], [wide], module="a"),
            call("linear", [x, wide], [z], module="a"),
            call("linear", [y, w], [u], module="b"),
        ],
        [z, u],
    )
    assert io(found, "a") == (64, 64 + 128, 128)
    assert io(found, "b") == (64, 64, 128)


def test_calls_of_one_module_are_regions_of_their_own() -> None:
    x, w, y, z = bf(4, 8, origin="input"), bf(8, 8, origin="param", name="w"), bf(4, 8), bf(4, 8)
    found = traffic([call("linear", [x, w], [y], module="a"), call("linear", [y, w], [z], module="a", number=2)], [z])
    assert io(found, "a") == io(found, "a:2") == (64, 64, 128)


def test_part_of_a_parameter() -> None:
    # one of the three (8, 8) blocks of a packed projection
    x, w, part, y = bf(4, 8, origin="input"), bf(24, 8, origin="param", name="w"), bf(8, 8), bf(4, 8)
    found = traffic([call("slice", [w], [part]), call("linear", [x, part], [y])], [y])
    assert io(found, "m") == (64, 64, 128)


def test_tables_are_read_by_row() -> None:
    table, ids, y = bf(100, 8, origin="param", name="table"), value(3, 5, dtype="int64", origin="input"), bf(3, 5, 8)
    found = traffic([call("embedding", [table, ids], [y])], [y])
    assert io(found, "m") == (0, 240, 240)  # 15 rows of 16 bytes, repeats and all; ids are integers
    # torch.nn.functional has the table second
    assert io(traffic([call("embedding", [ids, table], [y])], [y]), "m") == (0, 240, 240)


def test_experts_are_read_at_most_once_each() -> None:
    stack = bf(6, 8, 4, origin="param", name="experts")  # 6 experts of 64 bytes
    turned, offsets = bf(6, 4, 8), value(6, dtype="int32")

    def read(rows: int) -> Size:
        x, y = bf(rows, 4, origin="input"), bf(rows, 8)
        ops = [call("transpose", [stack], [turned]), call("_grouped_mm", [x, turned, offsets], [y])]
        return traffic(ops, [y])["m"].weight_read_bytes

    assert read(2) == 2 * 64
    assert read(50) == 6 * 64

    def gathered(rows: int) -> Size:
        picked, x, y = bf(rows, 8, 4), bf(rows, 4, 1, origin="input"), bf(rows, 8, 1)
        ops = [
            call("__getitem__", [stack, value(rows, dtype="int64")], [picked]),
            call("bmm", [picked, x], [y]),
        ]
        return traffic(ops, [y])["m"].weight_read_bytes

    assert gathered(2) == 2 * 64
    assert gathered(50) == 6 * 64

    one, x, y, rows = bf(8, 4), bf(9, 4, origin="input"), bf(5, 8), bf(5, 4)
    places = value(5, dtype="int64")
    loop = [call("nonzero", [value(6, 9, dtype="int64", origin="input")], [places])]
    for _ in range(3):  # a loop over three experts that a search found, 5 rows each: 15 rows could meet all 6
        loop += [
            call("__getitem__", [stack, places], [one]),
            call("__getitem__", [x, places], [rows]),
            call("linear", [rows, one], [y]),
        ]
    assert traffic(loop, [y])["m"].weight_read_bytes == 6 * 64


def sliced(source: Value, part: Value, **attrs: object) -> OpCall:
    return call("aten.slice.Tensor", [source], [part], attrs)


def test_equal_parts_are_read_once() -> None:
    # The first two rows of x twice, 2*8*2 bytes; once by the same bounds, once as a part of rows 0 to 2 as well.
    x, y, z = bf(4, 8, origin="input"), bf(2, 8), bf(2, 8)
    first, again, three, inner = bf(2, 8), bf(2, 8), bf(3, 8), bf(2, 8)
    bounds = {"dim": 0, "start": 0, "end": 2}
    same = [
        sliced(x, first, **bounds),
        sliced(x, again, **bounds),
        call("neg", [first], [y]),
        call("exp", [again], [z]),
    ]
    assert io(traffic(same, [y, z]), "m") == (32, 64, 0)
    other = [sliced(x, first, **bounds), sliced(x, again, dim=0, start=1, end=3), *same[2:]]
    assert io(traffic(other, [y, z]), "m") == (64, 64, 0)
    within = [
        sliced(x, three, dim=0, start=0, end=3), sliced(three, inner, dim=0, start=1, end=3),
        call("neg", [three], [bf(3, 8)]), call("exp", [inner], [z]),
    ]  # fmt: skip
    assert traffic(within, [z])["m"].input_bytes == 48
    # Of a weight too, seen in another shape, repeated, and by its first rows as they are.
    w, turned, wide = bf(4, 8, origin="param", name="w"), bf(8, 2), bf(3, 2, 8)
    weights = [
        sliced(w, first, **bounds), call("t", [first], [turned]),
        call("matmul", [bf(5, 8, origin="input"), turned], [y]),
        sliced(w, again, **bounds), call("expand", [again], [wide]), call("exp", [wide], [z]),
    ]  # fmt: skip
    assert traffic(weights, [y, z])["m"].weight_read_bytes == 32


def test_what_is_repeated_stays_the_part_that_it_was() -> None:
    # Two rows of a weight, 2*8*2 bytes, for each of three: seen in another order, and of each both halves.
    w, first, wide = bf(4, 8, origin="param", name="w"), bf(2, 8), bf(3, 2, 8)
    turned, y, left, right, z = bf(2, 3, 8), bf(2, 3, 8), bf(3, 2, 4), bf(3, 2, 4), bf(3, 2, 4)
    repeated = [sliced(w, first, dim=0, start=0, end=2), call("expand", [first], [wide])]
    ops = [*repeated, call("transpose", [wide], [turned]), call("exp", [turned], [y])]
    assert traffic(ops, [y])["m"].weight_read_bytes == 32
    halves = [sliced(wide, left, dim=2, start=0, end=4), sliced(wide, right, dim=2, start=4, end=8)]
    assert traffic([*repeated, *halves, call("mul", [left, right], [z])], [z])["m"].weight_read_bytes == 32


def test_rows_are_looked_up_in_buffers_and_activations_too() -> None:
    buffer, places, y = value(100, 8, origin="buffer", name="table"), value(3, dtype="int64"), value(3, 8)
    assert io(traffic([call("index", [buffer, places], [y])], [y]), "m") == (3 * 8 * 4, 3 * 8 * 4, 0)
    # More rows than it has: what is read is at most all of it.
    many = value(300, 8)
    assert traffic([call("index", [buffer, value(300, dtype="int64")], [many])], [many])["m"].input_bytes == 100 * 8 * 4
    # How many rows a mask names is in its values: the whole may be read.
    masked = [call("index", [buffer, value(100, dtype="bool")], [y])]
    assert traffic(masked, [y])["m"].input_bytes == 100 * 8 * 4
    x = bf(4, 8, origin="input")
    row, twice = bf(1, 8), bf(4, 8)
    both = [call("index_select", [x, value(1, dtype="int64")], [row], {"dim": 0}), call("mul", [x, row], [twice])]
    assert traffic(both, [twice])["m"].input_bytes == 64
    assert traffic(both[:1], [row])["m"].input_bytes == 16


def test_buffers_and_inputs_come_in_and_factories_do_not() -> None:
    frequencies = value(8, origin="buffer", name="inv_freq")  # float32: 32 bytes
    positions, steps, angles = value(4, 1, dtype="int64"), value(4, 1), value(4, 8)
    found = traffic(
        [
            call("arange", [], [positions]),
            call("float", [positions], [steps]),
            call("mul", [steps, frequencies], [angles]),
        ],
        [angles],
    )
    assert io(found, "m") == (32, 128, 0)
    like = traffic([call("zeros_like", [bf(4, 8, origin="input")], [bf(4, 8)])], [])
    assert all(t.input_bytes == 0 for t in like.values())


def test_cache() -> None:
    # past keys (6, 8) come in, new keys (1, 8) are joined to them; the joined cache is returned and attended to
    past, new, joined, query, out = bf(6, 8, origin="input"), bf(1, 8), bf(7, 8), bf(1, 8), bf(1, 8)
    x = bf(1, 8, origin="input")
    ops = [
        call("exp", [x], [new], module="attn.k"),
        call("exp", [x], [query], module="attn.q"),
        call("cat", [past, new], [joined], module="attn"),
        call("scaled_dot_product_attention", [query, joined, joined], [out], module="attn"),
    ]
    found = traffic(ops, [out], cache=[joined])
    assert io(found, "attn.k") == (16, 16, 0)
    assert io(found, "attn") == (96 + 16 + 16, 16, 0)  # past, new key, query; the result, not the cache


def test_joining_with_nothing_is_no_work() -> None:
    # the first fill of a cache: cat of an empty tensor and the keys is the keys
    keys, joined, z, nothing = bf(4, 8, origin="input"), bf(4, 8), bf(4, 8), bf(0)
    found = traffic(
        [call("cat", [nothing, keys], [joined], module="scaffold"), call("neg", [joined], [z], module="attn")], [z]
    )
    assert "scaffold" not in found
    assert io(found, "attn") == (64, 64, 0)


def test_an_operator_without_a_rule_reads_and_writes() -> None:
    x, y = bf(4, 8, origin="input"), bf(4, 8)
    assert io(traffic([call("mylib.mystery", [x], [y])], [y]), "m") == (64, 64, 0)


@given(b=st.integers(1, 9), s=st.integers(1, 9))
def test_symbolic_traffic_equals_integer_traffic(b: int, s: int) -> None:
    def block(batch: Size, length: Size) -> RegionTraffic:
        x, y = bf(batch, length + 2, 8, origin="input"), bf(batch, length + 2, 16)
        part, z = bf(batch, length, 16), bf(batch, length, 16)
        ops = [
            call("exp", [x], [y], module="a"),
            call("slice", [y], [part], module="b"),
            call("neg", [part], [z], module="b"),
        ]
        return traffic(ops, [z])["b"]

    symbolic, whole = block(sym("B"), sym("S")), block(b, s)
    assert evaluate(symbolic.input_bytes, {"B": b, "S": s}) == whole.input_bytes == 32 * b * s
    assert evaluate(symbolic.output_bytes, {"B": b, "S": s}) == whole.output_bytes


def test_minimum_of_sizes() -> None:
    n, p = sym("n"), sym("P")
    assert smaller(3 * n, 2 * n) == 2 * n
    assert smaller(n * p, n) == n  # P is at least 1
    assert smaller(n * p - n + 4, 3) == 3
    assert str(smaller(64, 6 * n)) == "2*Min(32, 3*n)"  # n decides
    assert smaller(64, 64 * n) == 64
