"""Draw a picture as a single SVG file, without scripts, fonts or external tools."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.escape import plain, shorten
from costproof.reports.graph.layout import COLUMN_GAP, Layout, Pair, layout
from costproof.reports.graph.picture import Edge, GraphView, Node

_MARGIN: Final = 24
_STACK: Final = 4
_LINE: Final = 18
_DOWN_GAP: Final = 30
"""Pixels between ranks in a picture read from top to bottom."""
_SPACE: Final = 'xmlns="http://www.w3.org/2000/svg"'
_STYLE: Final = """
    text { font-family: Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #1d2733; }
    .title { font-size: 17px; font-weight: bold; }
    .note { font-size: 11px; fill: #8a5a00; }
    .legend { font-size: 11px; fill: #55606c; }
    .class { font-size: 12px; font-weight: bold; }
    .path { font-size: 10px; font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #45525f; }
    .figures { font-size: 10px; fill: #45525f; }
    .box { fill: #ffffff; stroke: #8593a3; stroke-width: 1; }
    .for .box { fill: #edf7ef; stroke: #3b7f4a; }
    .parfor .box { fill: #eaf2fb; stroke: #3a6ea5; }
    .idle .box { fill: #f7f7f7; stroke: #a5a5a5; stroke-dasharray: 4 3; }
    .idle text { fill: #8a8a8a; }
    .for .loop { fill: #2c6b3a; }
    .parfor .loop { fill: #285a91; }
    .call { fill: none; stroke: #98a5b3; stroke-width: 1.2; }
    .flow { fill: none; stroke: #c2410c; stroke-width: 1.2; stroke-dasharray: 4 3; }
    .count { font-size: 9px; fill: #55606c; }
    a text { text-decoration: underline; }"""


@dataclass(frozen=True, slots=True)
class Look:
    """Detail of the boxes of a picture: class, path and all figures."""

    gap: int = COLUMN_GAP
    height: int = 56
    """Height of a box in pixels."""

    def title(self, node: Node) -> str:
        """Return the first line of a box, without the repetition that precedes it."""
        return shorten(plain(node.class_name), 40)

    def path(self, node: Node) -> str:
        """Return the second line of a box; empty to omit the line."""
        return shorten(plain(node.pattern), 44)

    def figures(self, node: Node) -> str:
        """Return the last line of a box, with its costs."""
        return node.figures


class Brief(Look):
    """Detail of the boxes of a slide: the end of the module path, and the FLOPs."""

    def title(self, node: Node) -> str:
        *before, last = plain(node.pattern).split(".")
        return shorten(".".join([*before[-1:], last]) if last[:1] in "[0123456789" else last, 22)

    def path(self, node: Node) -> str:
        return ""

    def figures(self, node: Node) -> str:
        return " · ".join(node.work)


def svg(view: GraphView) -> str:
    """Return an SVG: boxes are families of modules, grey arrows calls, dashed arrows data; tooltips hold the rest."""
    drawn = drawing(view, Look())
    width = max(drawn.width, 760, 10 * len(view.title))
    frame = f'{_SPACE} role="img" width="{width}" height="{drawn.height}" viewBox="0 0 {width} {drawn.height}"'
    return "\n".join([f"<svg {frame}>", *_open(view, width, drawn.height), *drawn.lines, "</svg>", ""])


def inline(view: GraphView) -> str:
    """Return the SVG for embedding in an HTML page, without the style element, which the page contains."""
    drawn = drawing(view, Look())
    width = max(drawn.width, 760, 10 * len(view.title))
    frame = f'role="group" width="{width}" height="{drawn.height}" viewBox="0 0 {width} {drawn.height}"'
    head = [line for line in _open(view, width, drawn.height) if not line.startswith("  <style>")]
    return "\n".join([f"<svg {frame}>", *head, *drawn.lines, "</svg>", ""])


def slide(view: GraphView) -> str:
    """Return the SVG of a 16:9 slide (1280 x 720) with the heaviest families that fit with letters of 12 pixels."""
    chosen: list[Node] = []
    drawn = drawing(view, _SLIDE_LOOK, ())
    # What has all of the work says nothing: the title stands for it.
    working = [n for n in view.nodes if n.ran and n.flops != 0 and (n.flops != n.whole or len(view.nodes) == 1)]
    every = {n.id for n in working}
    for node in sorted(working, key=lambda n: (-(n.flops or 0), n.depth)):
        kept = {n.id for n in chosen}
        called = every.intersection(e.source for e in view.calls if e.target == node.id and e.source != node.id)
        if called and not kept & called:
            continue
        tried = drawing(view, _SLIDE_LOOK, (*kept, node.id))
        if tried.width <= _SLIDE[0] and tried.height <= _SLIDE[1]:
            chosen, drawn = [*chosen, node], tried
    # As large as it can be in the frame, in its middle.
    width = max(drawn.width, -(-drawn.height * 16 // 9))
    height = -(-width * 9 // 16)
    frame = f'{_SPACE} role="img" width="1280" height="720" viewBox="0 0 {width} {height}"'
    lines = [f'  <g transform="translate({(width - drawn.width) // 2},{(height - drawn.height) // 2})">', *drawn.lines]
    return "\n".join([f"<svg {frame}>", *_open(view, width, height), *lines, "  </g>", "</svg>", ""])


_SLIDE: Final = (1024, 576)
"""Size of the drawing on a slide, shown 1.25 times as large; the smallest letters then have 12.5 pixels."""
_SLIDE_LOOK: Final = Brief(gap=36, height=42)
_NOTE: Final = 140
"""Maximum number of characters of a line of notes above the boxes of a slide."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines of SVG, and the width and height in pixels that they take."""

    lines: list[str]
    width: int
    height: int


def drawing(view: GraphView, look: Look, kept: Collection[str] | None = None) -> Drawing:
    """Return the SVG lines of a picture with title, boxes, arrows and legend.

    Args:
        kept: ids of the boxes that are drawn; all unless given.
    """
    nodes = [n for n in view.nodes if kept is None or n.id in kept]
    index = {n.id: i for i, n in enumerate(nodes)}
    calls, data = (
        [(e, (index[e.source], index[e.target])) for e in edges if {e.source, e.target} <= index.keys()]
        for edges in (view.calls, view.flow)
    )
    boxes = [(_width(n, look), look.height) for n in nodes]
    # Ranks that go down are ranks that go to the right, seen in a mirror.
    sizes = [(h, w) for w, h in boxes] if view.down else boxes
    placed = layout(sizes, [ends for _, ends in calls], _DOWN_GAP if view.down else look.gap, late=view.down)
    ways_back = [ends for _, ends in calls if placed.ranks[ends[0]] > placed.ranks[ends[1]]] if view.down else []
    lanes = {ends: i for i, ends in enumerate(ways_back, 1)}
    wide, high = (placed.width, placed.height)[:: -1 if view.down else 1]
    wide += (len(lanes) + 1) * LANE if lanes else 0
    left = len(view.nodes) - len(nodes)
    notes = view.head
    if isinstance(look, Brief):
        notes = (
            *(shorten(plain(n), _NOTE) for n in view.about[-1:]),
            *([f"{left} families are left out"] if left else []),
        )
    head = _MARGIN + _LINE + 14 * len(notes) + 10
    said = max(10 * len(view.title), *(6 * len(line) for line in (*notes, view.legend)))
    width = 2 * _MARGIN + max(wide + _STACK, said if isinstance(look, Brief) else 0)
    height = head + high + 2 * _LINE + _MARGIN
    lines = [f'  <text class="title" x="{_MARGIN}" y="{_MARGIN + 10}">{_xml(view.title)}</text>']
    for i, note in enumerate(notes):
        lines.append(f'  <text class="note" x="{_MARGIN}" y="{_MARGIN + 28 + 14 * i}">{_xml(note)}</text>')
    lines.append(f'  <g transform="translate({_MARGIN},{head})">')
    counted = view.counted
    for edge, ends in calls:
        lane = lanes.get(ends, 1) if view.down else 0
        lines.append(call_arrow(edge, ends, sizes, placed, said=view.said(edge), labelled=edge in counted, lane=lane))
    lines += [flow_arrow(edge, ends, sizes, placed) for edge, ends in data]
    for i, node in enumerate(nodes):
        x, y = (placed.x[i], placed.y[i])[:: -1 if view.down else 1]
        lines += _box(node, x, y, boxes[i][0], look)
    lines.append("  </g>")
    lines.append(f'  <text class="legend" x="{_MARGIN}" y="{height - _MARGIN + 8}">{_xml(view.legend)}</text>')
    return Drawing(lines, width, height)


def _open(view: GraphView, width: int, height: int) -> list[str]:
    return [
        f"  <title>{_xml(view.title)}</title>",
        f"  <style>{_STYLE}\n  </style>",
        "  <defs>",
        *_ARROW_HEADS,
        "  </defs>",
        f'  <rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def _width(node: Node, look: Look) -> int:
    """Return the width of a box in pixels, estimated from average letter widths."""
    head = len(node.repetition) + 2 if node.loops else 0
    first = 8 * (head + len(look.title(node)))
    return max(first, 6 * len(look.path(node)) + 6, 6 * len(look.figures(node))) + 22


def _box(node: Node, x: int, y: int, width: int, look: Look) -> list[str]:
    lines = [f'    <g class="{f"node {node.look}".strip()}" id="{node.id}">']
    lines.append(f"      <title>{_xml(chr(10).join(node.tooltip))}</title>")
    if node.link:
        lines.append(f'      <a href="{_xml(node.link)}">')
    rect = f'width="{width}" height="{look.height}" rx="6"'
    if node.loops:
        lines.append(f'      <rect class="box" x="{x + _STACK}" y="{y + _STACK}" {rect}/>')
    lines.append(f'      <rect class="box" x="{x}" y="{y}" {rect}/>')
    loop = f'<tspan class="loop">{_xml(node.repetition)}</tspan>  ' if node.loops else ""
    lines.append(f'      <text class="class" x="{x + 10}" y="{y + 18}">{loop}{_xml(look.title(node))}</text>')
    if path := look.path(node):
        lines.append(f'      <text class="path" x="{x + 10}" y="{y + 32}">{_xml(path)}</text>')
    low = y + look.height
    lines.append(f'      <text class="figures" x="{x + 10}" y="{low - 10}">{_xml(look.figures(node))}</text>')
    if part := node.part_of(width - 16):
        lines.append(f'      <rect class="share" fill="#e07b00" x="{x + 8}" y="{low - 5}" width="{part}" height="3"/>')
    if node.link:
        lines.append("      </a>")
    return [*lines, "    </g>"]


def _xml(text: str) -> str:
    """Escape text for XML; characters that XML 1.0 forbids become visible escapes."""
    lines = (plain(line) for line in text.split("\n"))
    return escape("\n".join("".join("\ufffd" if c in "\ufffe\uffff" else c for c in line) for line in lines))


LANE: Final = 10
"""Pixels between arrows that lead back, which run next to all boxes."""


def call_arrow(
    edge: Edge, ends: Pair, sizes: list[Pair], placed: Layout, *, labelled: bool, lane: int, said: str
) -> str:
    """Return the SVG of a call arrow, a solid line from rank to rank of the layout.

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


def flow_arrow(edge: Edge, ends: Pair, sizes: list[Pair], placed: Layout) -> str:
    """Return the SVG of a data arrow, a dashed line for which the layout reserves no room."""
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
    """Return whether another box in the same column lies between two boxes."""
    return any(x == placed.x[a] and placed.y[a] < y < placed.y[b] for x, y in zip(placed.x, placed.y, strict=True))


def _point(point: Pair, turned: bool) -> str:
    x, y = point[::-1] if turned else point
    return f"{x},{y}"


def _arrow_head(name: str, colour: str) -> str:
    return (
        f'    <marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
    )


_ARROW_HEADS: Final = (_arrow_head("call-head", "#98a5b3"), _arrow_head("flow-head", "#c2410c"))
"""SVG definitions of the arrow heads of calls and of data flow."""
