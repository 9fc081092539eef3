"""Active elements read off graphs that were drawn by hand; the numbers are worked out beside each."""

from __future__ import annotations

from collections.abc import Sequence

from costproof.algebra.symbols import sym
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.tally import active_elements
from tests.support.opcalls import call, value

# E = 8 experts of 6 x 10, k = 3 of them per token, T = 5 tokens: 15 rows meet the stack.
EXPERTS, TOP, TOKENS, WIDTH, INNER = 8, 3, 5, 6, 10


def stack(*shape: Size) -> Value:
    return value(*shape, origin="param", name="experts.up")


def entering(*shape: Size) -> Value:
    return value(*shape, origin="input")


def grouped(tokens: Size, tensor: Value, top: int = TOP) -> tuple[OpCall, ...]:
    """Tokens are repeated once for each of their experts, then every row meets its expert's matrix."""
    x, picks = entering(tokens, WIDTH), value(tokens * top, dtype="int64", origin="input")
    rows, offsets = value(tokens * top, WIDTH), value(EXPERTS, dtype="int32")
    result = value(tokens * top, tensor.shape[-1])
    return (
        call("aten.index.Tensor", [x, picks], [rows], names={"self": x}),
        call("aten._grouped_mm.default", [rows, tensor, offsets], [result], names={"mat_a": rows, "mat_b": tensor}),
    )


def active(*ops: OpCall, outputs: Sequence[Value] = ()) -> dict[str, int | None]:
    return active_elements(cost_graph(Graph(ops, tuple(outputs) or ops[-1].outputs)))


def test_a_grouped_product_shows_top_k_of_all_experts() -> None:
    # 15 rows for 5 tokens: 3 matrices of 6 x 10 each.
    assert active(*grouped(TOKENS, stack(EXPERTS, WIDTH, INNER))) == {"experts.up": 3 * 6 * 10}


def test_the_share_does_not_depend_on_how_many_tokens_there_are() -> None:
    # More rows than experts, fewer rows than experts, one token: 3 of 8 all the same.
    for tokens in (1, 2, 100):
        assert active(*grouped(tokens, stack(EXPERTS, WIDTH, INNER))) == {"experts.up": 180}


def test_tokens_in_symbols() -> None:
    tokens = sym("B") * sym("S")
    assert active(*grouped(tokens, stack(EXPERTS, WIDTH, INNER))) == {"experts.up": 180}


def test_tokens_in_several_dimensions() -> None:
    # [B, S, 6] is flattened to B*S rows; the module's input is the tensor before the view.
    batch, length = sym("B"), sym("S")
    x = entering(batch, length, WIDTH)
    flat = value(batch * length, WIDTH)
    rows = value(batch * length * TOP, WIDTH)
    up = stack(EXPERTS, WIDTH, INNER)
    ops = (
        call("view", [x], [flat]),
        call("repeat_interleave", [flat], [rows]),
        call("_grouped_mm", [rows, up], [value(batch * length * TOP, INNER)]),
    )
    assert active(*ops) == {"experts.up": 180}


def test_a_transposed_stack_is_the_same_stack() -> None:
    # The parameter is (8, 10, 6); what meets the rows is its view (8, 6, 10).
    parameter, turned = stack(EXPERTS, INNER, WIDTH), value(EXPERTS, WIDTH, INNER)
    turn = call("transpose", [parameter], [turned])
    assert active(turn, *grouped(TOKENS, turned)) == {"experts.up": 180}


def test_a_batched_index_picks_a_matrix_for_each_row() -> None:
    # weight[picks]: 15 matrices are fetched for 5 tokens, then multiplied with one row each.
    x, picks = entering(TOKENS, WIDTH), value(TOKENS * TOP, dtype="int64", origin="input")
    rows, up = value(TOKENS * TOP, WIDTH), stack(EXPERTS, INNER, WIDTH)
    fetched, column = value(TOKENS * TOP, INNER, WIDTH), value(TOKENS * TOP, WIDTH, 1)
    ops = (
        call("index_select", [x, picks], [rows], names={"self": x}),
        call("aten.index.Tensor", [up, picks], [fetched], names={"self": up}),
        call("unsqueeze", [rows], [column]),
        call("bmm", [fetched, column], [value(TOKENS * TOP, INNER, 1)]),
    )
    assert active(*ops) == {"experts.up": 180}


def test_every_stack_of_a_module_has_a_share_of_its_own() -> None:
    # The second stack reads what the first wrote, 10 wide; the tokens are still those that entered.
    up = stack(EXPERTS, WIDTH, INNER)
    down = value(EXPERTS, INNER, WIDTH, origin="param", name="experts.down")
    first = grouped(TOKENS, up)
    (inner,) = first[-1].outputs
    second = call("_grouped_mm", [inner, down], [value(TOKENS * TOP, WIDTH)])
    # 3 of 8 matrices of 60 elements, twice.
    assert active(*first, second) == {"experts.up": 180, "experts.down": 180}


def test_more_than_one_activation_of_the_width() -> None:
    # The rows of all experts come back in from an activation function: tokens are what was there before.
    ops = grouped(TOKENS, stack(EXPERTS, WIDTH, INNER))
    (result,) = ops[-1].outputs
    back, again = value(TOKENS * TOP, WIDTH), value(TOKENS * TOP, WIDTH)
    away = call("silu", [result], [back], module="m.act")
    assert active(*ops, away, call("mul", [back, back], [again]), outputs=[again]) == {"experts.up": 180}
    # Where as many enter with the tokens, the graph does not say which of both are these.
    other = call("mul", [entering(TOKENS * TOP, WIDTH), back], [again])
    assert active(*ops, away, other, outputs=[again]) == {"experts.up": None}


def test_tokens_that_cannot_be_seen_leave_it_unknown() -> None:
    # Only rows of another width enter the module: which of them are tokens, the graph does not say.
    narrow, rows = entering(TOKENS, 4), value(TOKENS * TOP, WIDTH)
    up = stack(EXPERTS, WIDTH, INNER)
    ops = (
        call("linear", [narrow, value(WIDTH, 4, origin="param", name="lift")], [rows]),
        call("_grouped_mm", [rows, up], [value(TOKENS * TOP, INNER)]),
    )
    assert active(*ops) == {"experts.up": None}


def test_a_share_that_is_no_number_of_elements_is_unknown() -> None:
    # 7 rows for 9 tokens of a stack of 8 x 6 x 10: 480 * 7 / (9 * 8) is 46 and two thirds.
    x, rows, up = entering(9, WIDTH), value(7, WIDTH), stack(EXPERTS, WIDTH, INNER)
    ops = (
        call("index_select", [x, value(7, dtype="int64", origin="input")], [rows], names={"self": x}),
        call("_grouped_mm", [rows, up], [value(7, INNER)]),
    )
    assert active(*ops) == {"experts.up": None}


def test_rows_that_grow_apart_from_the_tokens_are_unknown() -> None:
    x, rows, up = entering(sym("B"), WIDTH), value(sym("n"), WIDTH), stack(EXPERTS, WIDTH, INNER)
    ops = (
        call("repeat_interleave", [x], [rows]),
        call("_grouped_mm", [rows, up], [value(sym("n"), INNER)]),
    )
    assert active(*ops) == {"experts.up": None}


def test_tables_and_dense_layers_are_not_stacks() -> None:
    # One token passes a whole linear layer; of an embedding the rows are looked up, which says nothing on experts.
    ids, table = value(TOKENS, dtype="int64", origin="input"), value(99, WIDTH, origin="param", name="embed")
    x, weight = value(TOKENS, WIDTH), value(INNER, WIDTH, origin="param", name="dense")
    ops = (
        call("embedding", [table, ids], [x], names={"weight": table}),
        call("linear", [x, weight], [value(TOKENS, INNER)]),
    )
    assert active(*ops) == {}


def test_a_stack_that_is_no_parameter_is_left_out() -> None:
    made = value(EXPERTS, WIDTH, INNER)
    assert active(*grouped(TOKENS, made)) == {}


def test_a_view_of_a_single_number_is_a_row_of_nothing() -> None:
    number = value(origin="param", name="scale")
    seen = call("aten.view.default", [number], [value()], names={"self": number})
    assert active(seen, *grouped(TOKENS, stack(EXPERTS, WIDTH, INNER))) == {"experts.up": 180}


def test_another_activation_of_the_width_hides_the_tokens() -> None:
    # One row that conditions all tokens is as wide as these: which of both are the tokens the graph does not say.
    x, condition, rows = entering(TOKENS, WIDTH), entering(1, WIDTH), value(TOKENS, WIDTH)
    up, offsets = stack(EXPERTS, WIDTH, INNER), value(EXPERTS, dtype="int32")
    product = call("_grouped_mm", [rows, up, offsets], [value(TOKENS, INNER)])
    assert active(call("add", [x, condition], [rows]), product) == {"experts.up": None}
    # As long as the tokens, as a residual is, it does no harm: one expert each.
    assert active(call("add", [x, entering(TOKENS, WIDTH)], [rows]), product) == {"experts.up": 60}


def test_a_share_of_more_than_all_is_none() -> None:
    # 20 rows for one token would be 20 matrices of 8.
    rows, up, offsets = value(20, WIDTH), stack(EXPERTS, WIDTH, INNER), value(EXPERTS, dtype="int32")
    product = call("_grouped_mm", [rows, up, offsets], [value(20, INNER)])
    assert active(call("expand", [entering(1, WIDTH)], [rows]), product) == {"experts.up": None}
