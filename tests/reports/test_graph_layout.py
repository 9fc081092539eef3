"""A layered layout: callers left of what they call, nothing on top of anything else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from costproof.reports.graph.layout import Layout, crossings, layout

ARROWS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=30)
SIZES = st.lists(st.tuples(st.integers(10, 200), st.integers(10, 60)), min_size=15, max_size=15)


def _ranks(placed: Layout) -> list[int]:
    return list(placed.ranks)


@settings(max_examples=60)
@given(SIZES, ARROWS, st.booleans())
def test_boxes_never_overlap_and_lie_inside(
    sizes: list[tuple[int, int]], arrows: list[tuple[int, int]], late: bool
) -> None:
    placed = layout(sizes, arrows, late=late)
    boxes = [(x, y, x + w, y + h) for x, y, (w, h) in zip(placed.x, placed.y, sizes, strict=True)]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0
        assert top >= -1
        assert right <= placed.width
        assert bottom <= placed.height + 1
        for u, v, x, y in boxes[i + 1 :]:
            assert right <= u or x <= left or bottom <= v or y <= top
    assert layout(sizes, arrows, late=late) == placed


def test_rank_is_the_longest_path() -> None:
    # 0 -> 1 -> 2 and 0 -> 2 and 3 alone: 2 stands after 1, and its short cut bends once
    placed = layout([(10, 10)] * 4, [(0, 1), (1, 2), (0, 2)])
    assert _ranks(placed) == [0, 1, 2, 0]
    assert set(placed.bends) == {(0, 2)}
    assert len(placed.bends[0, 2]) == 2


def test_late_is_just_before_what_is_led_to() -> None:
    # 0 -> 1 -> 2 -> 3 and 4 -> 3: 4 stands beside 2, not beside 0; 5 alone stays
    arrows = [(0, 1), (1, 2), (2, 3), (4, 3)]
    assert _ranks(layout([(10, 10)] * 6, arrows)) == [0, 1, 2, 3, 0, 0]
    assert _ranks(layout([(10, 10)] * 6, arrows, late=True)) == [0, 1, 2, 3, 2, 0]


def test_circles_and_loops_are_broken() -> None:
    assert _ranks(layout([(10, 10)] * 3, [(0, 1), (1, 2), (2, 0), (1, 1)])) == [0, 1, 2]


def test_a_tree_has_no_crossing_and_keeps_its_order() -> None:
    arrows = [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (3, 6), (3, 7)]
    placed = layout([(10, 10)] * 8, arrows)
    assert placed.y[1] < placed.y[2] < placed.y[3]
    assert placed.y[4] < placed.y[5] < placed.y[6] < placed.y[7]


def test_barycenters_take_crossings_away() -> None:
    # 0 calls 2 and 3, 1 calls 2: in the order of the walk the arrows to 3 and from 1 cross
    placed = layout([(10, 10)] * 4, [(0, 2), (0, 3), (1, 2)])
    assert placed.y[0] < placed.y[1]
    assert placed.y[3] < placed.y[2]
    assert crossings([[0, 1], [2, 3]], [(0, 3), (1, 2)]) == 1
    assert crossings([[0, 1], [3, 2]], [(0, 3), (1, 2)]) == 0
