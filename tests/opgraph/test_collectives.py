"""The cost of collectives, against the ring's arithmetic by hand."""

from __future__ import annotations

from typing import Any, Final

import pytest
import sympy

from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.support.opcalls import call, counted, value

# 2 x 10 x 64 elements of 2 bytes are 2560 bytes; a quarter of them is 640.
CASES: Final[dict[str, tuple[str, dict[str, Any], tuple[str, int, int]]]] = {
    "in place": ("c10d.allreduce_.default", {"group_size": 4}, ("all_reduce", 2560, 6 * 640)),
    "functional": ("_c10d_functional.all_reduce.default", {"group_name": "tp:4"}, ("all_reduce", 2560, 6 * 640)),
    # 1280 elements in chunks of 427
    "not divided": ("c10d.allreduce_.default", {"group_size": 3}, ("all_reduce", 2560, 4 * 427 * 2)),
    "gather": (
        "_c10d_functional.all_gather_into_tensor.default", {"group_name": "tp:8"}, ("all_gather", 8 * 2560, 7 * 2560),
    ),
    "scatter": (
        "_c10d_functional.reduce_scatter_tensor.default", {"group_size": 2}, ("reduce_scatter", 2560, 1280),
    ),
    "exchange": ("_c10d_functional.all_to_all_single.default", {"group_size": 4}, ("all_to_all", 2560, 3 * 640)),
    "send": ("c10d.send.default", {}, ("send", 2560, 2560)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "attrs", "expected"), CASES.values(), ids=CASES)
def test_bytes_of_a_ring(name: str, attrs: dict[str, Any], expected: tuple[str, int, int]) -> None:
    x = value(2, 10, 64, dtype="bfloat16")
    cost = counted(call(name, [x], [value(2, 10, 64, dtype="bfloat16")], attrs))
    assert cost.comm == expected
    assert (cost.flops, cost.vector) == (0, 0)


def test_a_step_of_a_ring_is_told_from_pairs_by_its_source() -> None:
    """A vector of 1280 elements of 2 bytes, all for one other rank: the parts are those of a ring's step."""
    x = value(1280, dtype="bfloat16")
    attrs = {"input_split_sizes": [0, 0, 1280, 0], "group_size": 4, "group_rank": 1}
    name = "_c10d_functional.all_to_all_single.default"
    assert counted(call(name, [x], [x], {**attrs, "of_ring": True})).comm == ("send", 2560, 2560)
    assert counted(call(name, [x], [x], attrs)).comm == ("all_to_all", 2560, 2560)


def test_a_rank_that_sends_pairs_to_itself_sends_nothing() -> None:
    x = value(1280, dtype="bfloat16")
    attrs = {"input_split_sizes": [0, 1280], "group_size": 2, "group_rank": 1, "of_ring": True}
    assert counted(call("_c10d_functional.all_to_all_single.default", [x], [x], attrs)).comm == ("all_to_all", 2560, 0)


def test_symbolic_rows() -> None:
    rows = sympy.Symbol("S", integer=True, positive=True)
    x = value(rows, 64, dtype="float32")
    cost = counted(call("c10d.allreduce_.default", [x], [x], {"group_size": 8}))
    assert cost.comm == ("all_reduce", 256 * rows, 14 * 8 * 4 * rows)


def test_one_rank_exchanges_nothing() -> None:
    x = value(4, 4)
    assert counted(call("c10d.allreduce_.default", [x], [x], {"group_size": 1})).comm is None


def test_waiting_is_no_collective() -> None:
    x = value(4, 4)
    cost = counted(call("_c10d_functional.wait_tensor.default", [x], [value(4, 4)]))
    assert (cost.comm, cost.role) == (None, "alias")


@pytest.mark.parametrize(
    ("name", "attrs", "why"),
    [
        ("c10d.allreduce_.default", {}, "size of the group"),
        ("_c10d_functional.all_reduce.default", {"group_name": "0"}, "size of the group"),
        ("_c10d_functional.all_to_all_single.default", {"group_size": 2, "input_split_sizes": [3, 1]}, "routing"),
    ],
)
def test_what_a_graph_does_not_show_is_unknown(name: str, attrs: dict[str, Any], why: str) -> None:
    x = value(4, 4)
    cost = cost_of(call(name, [x], [x], attrs))
    assert isinstance(cost, UnknownCost)
    assert why in cost.why
