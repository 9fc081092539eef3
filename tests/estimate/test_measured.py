"""Measured times beside their bounds, by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from costproof.compare.patterns import patterns
from costproof.estimate.measured import Place, Row, median_error, part_rows, rows
from costproof.estimate.roofline import Roof
from costproof.ledger.node import CostNode
from costproof.ledger.profile import Timing

ROOF = Roof(8, 2)
"""8 FLOP and 2 bytes a second: they meet at 4 FLOP per byte."""
S = 10**9
MEMORY = "ran at 111 % of the bandwidth in the device file, its operators alone too: the file, or the bytes"
PLACE = ("page", "sam", "global")


def node(module: str, **costs: int | None) -> CostNode:
    return CostNode("sam", "global", module, "linear", costs)


BUSY = node("a", flops=80, weight_read_bytes=4, input_bytes=2, output_bytes=2)
"""10 s of products, 4 s of bytes."""
WAITING = node("b", flops=8, weight_read_bytes=10, input_bytes=4, output_bytes=2, kv_read_bytes=4)
"""1 s of products, 10 s of bytes."""


def one(*nodes: CostNode, measured: tuple[int, ...], replay: int | None = 0) -> Row:
    (row,) = rows({"page": nodes}, {PLACE: Timing(measured) if measured else None}, {PLACE: replay}, ROOF)
    return row


def test_the_parts_by_hand() -> None:
    row = one(BUSY, WAITING, measured=(31 * S, 30 * S, 60 * S), replay=26 * S)
    # Products 88 / 8 = 11 s; weights and cache 18 / 2 = 9 s. The modules: 10 s, then 10 s.
    assert (row.floor.seconds, row.floor.bound, row.roof.seconds) == ("11", "compute", "20")
    assert row.split is not None
    split = (row.split.floor, row.split.traffic, row.split.shapes, row.split.between)
    parts = [Fraction(p or 0) / S for p in split]
    assert parts == [11, 9, 6, 5]
    assert sum(parts) == 31
    assert (row.of_peak, row.of_bandwidth) == (str(Fraction(88, 31 * 8)), str(Fraction(28, 31 * 2)))
    assert row.error == Fraction(5, 31)
    assert row.wrong == ""


def test_parts_add_up_where_some_are_negative() -> None:
    row = one(BUSY, WAITING, measured=(12 * S,), replay=15 * S)
    assert row.split is not None
    assert [Fraction(p or 0) / S for p in (row.split.shapes, row.split.between)] == [15 - 20, 12 - 15]
    assert row.wrong == ""


@pytest.mark.parametrize(
    ("nodes", "replay", "wrong"),
    [
        ((BUSY,), 9, "ran at 111 % of the peak in the device file, its operators alone too: the file, or the FLOPs"),
        ((BUSY,), 10, "ran at 111 % of the peak in the device file, its operators alone did not: the clock"),
        (
            (node("a", flops=8, weight_read_bytes=12, kv_read_bytes=8),),
            8,
            MEMORY,
        ),
    ],
)
def test_what_is_faster_than_it_can_be(nodes: tuple[CostNode, ...], replay: int, wrong: str) -> None:
    assert one(*nodes, measured=(9 * S, 30 * S, 31 * S), replay=replay * S).wrong == wrong
    assert one(*nodes, measured=(10 * S, 30 * S, 31 * S), replay=replay * S).wrong == ""


def test_what_is_not_known_stays_so() -> None:
    row = one(BUSY, node("b", flops=None, weight_read_bytes=1), measured=(S,), replay=S)
    assert (row.split, row.of_peak, row.wrong, row.floor.seconds) == (None, None, "", None)


def test_what_never_ran_is_predicted_by_its_operators() -> None:
    row = one(BUSY, WAITING, measured=(), replay=26 * S)
    assert (row.measured, row.error, row.of_peak, row.of_bandwidth, row.wrong) == (None, None, None, None, "")
    assert row.split is not None
    assert row.split.between is None
    # As above: a floor of 11 s, 20 s at the roof.
    assert [Fraction(p) / S for p in (row.split.floor, row.split.traffic, row.split.shapes)] == [11, 9, 6]
    assert median_error([row]) == 0
    assert one(BUSY, measured=(), replay=1).wrong == ""  # nothing that was measured can be wrong


def test_one_operator_that_is_not_known_makes_the_replay_unknown() -> None:
    row = one(BUSY, WAITING, measured=(31 * S,), replay=None)
    assert (row.split, row.error, row.of_peak) == (None, None, str(Fraction(88, 31 * 8)))
    wrong = one(BUSY, measured=(9 * S,), replay=None).wrong
    assert wrong == "ran at 111 % of the peak in the device file: the file, the FLOPs, or the clock"
    spent: dict[Place, int | None] = {("page", "sam", "a"): 3, ("page", "sam", "b"): None}
    found = part_rows({"page": (BUSY, WAITING)}, spent, patterns, ROOF)
    assert [(p.part, p.replay, p.of_peak is None) for p in found] == [("b", None, True), ("a", 3, False)]


def test_a_forward_that_costs_nothing_known_is_timed_too() -> None:
    (row,) = rows({}, {PLACE: Timing((5,))}, {}, ROOF)
    assert (row.floor.seconds, row.replay, row.split and row.split.between) == ("0", 0, "5")


def test_parts_of_the_model_are_modules_that_differ_in_numbers() -> None:
    def at(module: str, flops: int | None) -> CostNode:
        return node(module, flops=flops, input_bytes=2)

    nodes = (at("layers.0.up", 80), at("layers.1.up", 40), at("head", 8), at("norm", None))
    spent: dict[Place, int | None] = {
        ("page", "sam", m): t for m, t in (("layers.0.up", 7), ("layers.1.up", 5), ("", 2), ("head", 3))
    }
    found = part_rows({"page": nodes}, spent, patterns, ROOF)
    # 80 / 8 + 40 / 8 = 15 s of products; the head's 2 bytes take as long as its 8 FLOPs; the root has no node.
    assert [(p.part, p.replay, p.roof.seconds, p.roof.flops) for p in found] == [
        ("layers.[0-1].up", 12, "15", 120), ("head", 3, "1", 8), ("", 2, "0", 0), ("norm", 0, None, None),
    ]  # fmt: skip
    # 120 FLOP in 12 ns, 8 in 3 ns, of 8 FLOP/s
    assert [p.of_peak for p in found] == [str(120 * S // 12 // 8), str(Fraction(8 * S, 3 * 8)), "0", None]
