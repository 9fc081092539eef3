"""Sums over decode steps that look up more and more rows of a table: beside adding up every step."""

from __future__ import annotations

from itertools import product

import pytest

from costproof.ledger.metrics import FLOOR
from costproof.ledger.node import CostNode
from costproof.ledger.workload import sampled_steps
from costproof.opgraph.merge import DecodeStep, sum_traced_steps


def floor_over_steps(rows: list[int], table: int, rest: list[int]) -> int | None:
    """Return the sum of what steps move at least, from those that are watched: rows at most once, and the rest."""
    steps = []
    for i in sampled_steps(len(rows)):
        moved = min(rows[i], table) + rest[i]
        nodes = (CostNode("decode", "steps", "", "", {FLOOR: moved}),)
        tables = {} if rows[i] == table else {"table": (rows[i], table)}
        steps.append(DecodeStep(10 + i, nodes, tables))
    (node,), _ = sum_traced_steps(steps, len(rows))
    return node.costs[FLOOR]


@pytest.mark.parametrize("count", [2, 3, 7, 12])
def test_rows_that_fill_a_table_are_read_once(count: int) -> None:
    for first, step, table, slope in product((0, 3, 50), (0, 4, 5), (1, 20, 33, 1000), (0, 2)):
        rows = [first + step * i for i in range(count)]
        rest = [7 + slope * i for i in range(count)]
        by_adding = sum(min(r, table) + other for r, other in zip(rows, rest, strict=True))
        assert floor_over_steps(rows, table, rest) == by_adding, (first, step, table, slope)


def test_by_hand() -> None:
    """Rows of 4, 8, 12, 16, 20 bytes of a table of 10: 4 + 8 + 10 + 10 + 10, and 1 for all else in each step."""
    assert floor_over_steps([4, 8, 12, 16, 20], 10, [1] * 5) == 42 + 5


def test_what_is_no_straight_line_is_unknown() -> None:
    assert floor_over_steps([4, 8, 12, 17, 20, 24, 29], 10, [1] * 7) is None
    assert floor_over_steps([4, 8, 12, 16, 20], 10, [1, 1, 1, 1, 2]) is None
    # A line that falls, of a table that is not read whole in the end.
    assert floor_over_steps([20, 16, 12, 8, 4], 10, [1] * 5) is None


def seen_over_steps(context: int, count: int, chunk: int) -> int | None:
    """The sum from the sampled steps of the keys that a chunk leaves, behind what grows by 3 a step."""
    steps = [
        DecodeStep(context + i, (CostNode("decode", "steps", "", "", {FLOOR: 3 * i + (context + i) % chunk + 1}),), {})
        for i in sampled_steps(count, context, chunk)
    ]
    (node,), _ = sum_traced_steps(steps, count)
    return node.costs[FLOOR]


@pytest.mark.parametrize("chunk", [2, 5, 6, 8, 1000])
def test_steps_within_chunks_are_added_piece_by_piece(chunk: int) -> None:
    for context, count in product((0, 1, 4, 5, 7, 999), (1, 2, 3, 4, 5, 6, 7, 9, 13, 20)):
        by_adding = sum(3 * i + (context + i) % chunk + 1 for i in range(count))
        # Many pieces are not sampled one by one: they are on no line.
        assert seen_over_steps(context, count, chunk) in ((by_adding,) if chunk > 2 else (by_adding, None))
    assert seen_over_steps(3, 10**6, 8) is None


def test_pieces_need_a_step_between_their_ends() -> None:
    """Of 7 steps, 1, 2, 3, 4 and then 1, 2, 3 are 16: of all but the third, not of fewer."""

    def over(at: tuple[int, ...]) -> int | None:
        nodes = [(CostNode("decode", "steps", "", "", {FLOOR: i % 4 + 1}),) for i in at]
        (node,), _ = sum_traced_steps([DecodeStep(9 + i, n, {}) for i, n in zip(at, nodes, strict=True)], 7)
        return node.costs[FLOOR]

    assert over((0, 1, 3, 4, 5, 6)) == 16
    assert over((0, 3, 4, 5, 6)) is None
    assert over((0, 1, 3, 5, 6)) is None
    assert over((0, 3, 6)) is None
