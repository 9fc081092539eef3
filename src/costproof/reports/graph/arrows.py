"""The arrows of a picture as SVG, between boxes that are placed already."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.graph.layout import Layout, Pair
from costproof.reports.graph.picture import Edge

LANE: Final = 10
"""Pixels between arrows that lead back beside all boxes."""


def call(edge: Edge, ends: Pair, sizes: list[Pair], placed: Layout, *, labelled: bool, lane: int, said: str) -> str:
    """A solid arrow, along which the boxes are ranked.

    Args:
        ends: places of its two boxes.
        sizes: of all boxes along the ranks and across them, as they were given to the layout.
        said: what it stands for.
        labelled: whether its count stands beside it.
        lane: 0 where ranks go from left to right; else they go down, and a way back takes this lane beside the boxes.
    """
    a, b = ends
    (end, over), (_, under) = ((placed.x[i] + sizes[i][0], placed.y[i] + sizes[i][1] // 2) for i in ends)
    half, begin = sizes[a][1] // 2, placed.x[b]
    back = placed.ranks[a] >= placed.ranks[b]
    label = (end + 8, over + 14 * back - 5)
    steps: list[tuple[str, tuple[Pair, ...]]]
    if a == b:
        # To itself: around the lower right corner.
        low = over + half + 8
        round_ = ((end + 16, over + 8), (end + 16, low), (end, low))
        under_it = ((end - 24, low), (end - 24, placed.y[a] + sizes[a][1] + 1))
        steps = [("M", ((end, over + 8),)), ("C", round_), ("L", under_it)]
    elif back and lane:
        side = placed.height + lane * LANE
        out, into = ((placed.x[i] + sizes[i][0] // 2, placed.y[i] + sizes[i][1]) for i in ends)
        steps = [("M", (out,)), ("L", ((out[0], side), (into[0], side), into))]
        label = (out[0], out[1] + 4)
    elif back:
        down = max(placed.y[a], placed.y[b]) + sizes[a][1] + 10
        steps = [("M", ((end, over + 8),)), ("C", ((end + 40, down), (begin - 40, down), (begin, under + 8)))]
    else:
        points = [(end, over), *placed.bends.get(ends, ()), (begin, under)]
        steps = [("M", (points[0],))]
        for i, ((x, y), (u, v)) in enumerate(pairwise(points)):
            # Between ranks a curve, through a rank a straight line.
            steps.append(("C", (((x + u) // 2, y), ((x + u) // 2, v), (u, v))) if i % 2 == 0 else ("L", ((u, v),)))
        if lane:
            (x, y), (u, v) = points[-2:]
            label = ((x + 3 * u) // 4, (y + 3 * v) // 4 + 4)
    turned = bool(lane)
    path = " ".join(letter + " ".join(_point(p, turned) for p in given) for letter, given in steps)
    drawn = f'    <path class="call" d="{path}" marker-end="url(#call-head)"><title>{said}</title></path>'
    if not labelled:
        return drawn
    x, y = label[::-1] if turned else label
    return f'{drawn}\n    <text class="count" x="{x}" y="{y}">×{edge.count}</text>'


def flow(edge: Edge, ends: Pair, sizes: list[Pair], placed: Layout) -> str:
    """A dashed arrow, which the layout did not know of."""
    a, b = ends
    top, bottom = placed.y[a], placed.y[b]
    if placed.x[a] != placed.x[b]:
        x, u = placed.x[a] + sizes[a][0] // 2, placed.x[b] + sizes[b][0] // 2
        y, v = (top + sizes[a][1], bottom) if top < bottom else (top, bottom + sizes[a][1])
        path = f"M{x},{y} C{x},{(y + v) // 2} {u},{(y + v) // 2} {u},{v}"
    elif top < bottom and not _between(a, b, placed):
        x = placed.x[a] + 20
        path = f"M{x},{top + sizes[a][1]} V{bottom}"
    else:
        # Past others in the same column: an arc on the left, the wider the further.
        x, way = placed.x[a], 1 if top < bottom else -1
        y, v = top + sizes[a][1] // 2 + 14 * way, bottom + sizes[a][1] // 2 - 14 * way
        bulge = min(46, 18 + abs(v - y) // 20)
        path = f"M{x},{y} C{x - bulge},{y} {x - bulge},{v} {x},{v}"
    said = f"feeds, {plural(edge.count, 'pair')} of calls"
    return f'    <path class="flow" d="{path}" marker-end="url(#flow-head)"><title>{said}</title></path>'


def _between(a: int, b: int, placed: Layout) -> bool:
    """Whether another box of the column lies between two."""
    return any(x == placed.x[a] and placed.y[a] < y < placed.y[b] for x, y in zip(placed.x, placed.y, strict=True))


def _point(point: Pair, turned: bool) -> str:
    x, y = point[::-1] if turned else point
    return f"{x},{y}"


def _head(name: str, colour: str) -> str:
    return (
        f'    <marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
    )


HEADS: Final = (_head("call-head", "#98a5b3"), _head("flow-head", "#c2410c"))
"""Definitions that both refer to."""
