"""The grouped view as SVG: one file, no script, no font, no tool needed."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import Final

from costproof.reports.graph.layout import Layout, layout
from costproof.reports.graph.names import plain, shorten
from costproof.reports.graph.picture import Edge, GraphView, Node
from costproof.reports.numbers import plural

_PATTERN: Final = 44
"""Characters of a path that a box shows; the tooltip has all."""
_CLASS: Final = 40
_HEIGHT: Final = 54
_MARGIN: Final = 24
_STACK: Final = 4
_LINE: Final = 18
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


def svg(view: GraphView) -> str:
    """Boxes are families of modules, grey arrows calls (left to right), dashed arrows data. Tooltips hold the rest."""
    return _drawing(view, f'{_SPACE} role="img"', [f"  <style>{_STYLE}\n  </style>"])


def inline(view: GraphView) -> str:
    """The same as part of an HTML page, which brings the style."""
    return _drawing(view, 'role="group"', [])


def _drawing(view: GraphView, kind: str, style: list[str]) -> str:
    index = {n.id: i for i, n in enumerate(view.nodes)}
    sizes = [(_width(n), _HEIGHT) for n in view.nodes]
    placed = layout(sizes, [(index[e.source], index[e.target]) for e in view.calls])
    head = _MARGIN + _LINE + 14 * len(view.head) + 14
    width = max(placed.width + 2 * _MARGIN, 760, 10 * len(view.title))
    height = head + placed.height + 2 * _LINE + _MARGIN
    lines = [
        f'<svg {kind} width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"  <title>{_xml(view.title)}</title>",
        *style,
        "  <defs>",
        *(_head(name, colour) for name, colour in (("call-head", "#98a5b3"), ("flow-head", "#c2410c"))),
        "  </defs>",
        f'  <rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'  <text class="title" x="{_MARGIN}" y="{_MARGIN + 10}">{_xml(view.title)}</text>',
    ]
    for i, note in enumerate(view.head):
        lines.append(f'  <text class="note" x="{_MARGIN}" y="{_MARGIN + 28 + 14 * i}">{_xml(note)}</text>')
    lines.append(f'  <g transform="translate({_MARGIN},{head})">')
    several = view.shared
    for edge in view.calls:
        lines += _call(edge, index, sizes, placed, edge.target in several)
    for edge in view.flow:
        lines += _flow(edge, index, sizes, placed)
    for i, node in enumerate(view.nodes):
        lines += _box(node, placed.x[i], placed.y[i], sizes[i][0])
    lines.append("  </g>")
    legend = (
        "for N: N modules in series · parfor N: N modules side by side, or N calls of one · grey: calls · dashed: data"
    )
    lines.append(f'  <text class="legend" x="{_MARGIN}" y="{height - _MARGIN + 8}">{_xml(legend)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _width(node: Node) -> int:
    """Of a box, from the usual widths of letters."""
    head = len(node.repetition) + 2 if node.loops else 0
    first = 8 * (head + len(_class(node)))
    return max(first, 6 * len(_path(node)) + 6, 11 * len(node.figures) // 2) + 22


def _class(node: Node) -> str:
    return shorten(plain(node.class_name), _CLASS)


def _path(node: Node) -> str:
    return shorten(plain(node.pattern), _PATTERN)


def _box(node: Node, x: int, y: int, width: int) -> list[str]:
    lines = [f'    <g class="{f"node {node.look}".strip()}" id="{node.id}">']
    lines.append(f"      <title>{_xml(chr(10).join(node.tooltip))}</title>")
    if node.link:
        lines.append(f'      <a href="{_xml(node.link)}">')
    rect = f'width="{width}" height="{_HEIGHT}" rx="6"'
    if node.loops:
        lines.append(f'      <rect class="box" x="{x + _STACK}" y="{y + _STACK}" {rect}/>')
    lines.append(f'      <rect class="box" x="{x}" y="{y}" {rect}/>')
    loop = f'<tspan class="loop">{_xml(node.repetition)}</tspan>  ' if node.loops else ""
    lines.append(f'      <text class="class" x="{x + 10}" y="{y + 18}">{loop}{_xml(_class(node))}</text>')
    lines.append(f'      <text class="path" x="{x + 10}" y="{y + 32}">{_xml(_path(node))}</text>')
    lines.append(f'      <text class="figures" x="{x + 10}" y="{y + 46}">{_xml(node.figures)}</text>')
    if node.link:
        lines.append("      </a>")
    return [*lines, "    </g>"]


def _call(edge: Edge, index: dict[str, int], sizes: list[tuple[int, int]], placed: Layout, labelled: bool) -> list[str]:
    a, b = index[edge.source], index[edge.target]
    half = _HEIGHT // 2
    right, left = placed.x[a] + sizes[a][0], placed.x[b]
    back = placed.ranks[a] >= placed.ranks[b]
    if back:
        # Back to a caller, or to itself: around the lower right corner.
        down = max(placed.y[a], placed.y[b]) + _HEIGHT + 10
        start = f"M{right},{placed.y[a] + half + 8}"
        path = (
            f"{start} c16,0 16,{half} 0,{half} H{right - 24} V{placed.y[a] + _HEIGHT + 1}"
            if a == b
            else f"{start} C{right + 40},{down} {placed.x[b] - 40},{down} {left},{placed.y[b] + half + 8}"
        )
    else:
        points = [(right, placed.y[a] + half), *placed.bends.get((a, b), ()), (left, placed.y[b] + half)]
        path = f"M{points[0][0]},{points[0][1]}"
        for i, ((x, y), (u, v)) in enumerate(pairwise(points)):
            # Between ranks a curve, through a rank a straight line.
            path += f" C{(x + u) // 2},{y} {(x + u) // 2},{v} {u},{v}" if i % 2 == 0 else f" L{u},{v}"
    said = plural(edge.count, "call")
    lines = [f'    <path class="call" d="{path}" marker-end="url(#call-head)"><title>{said}</title></path>']
    if labelled:
        lines.append(
            f'    <text class="count" x="{right + 8}" y="{placed.y[a] + half + 14 * back - 5}">×{edge.count}</text>'
        )
    return lines


def _flow(edge: Edge, index: dict[str, int], sizes: list[tuple[int, int]], placed: Layout) -> list[str]:
    a, b = index[edge.source], index[edge.target]
    top, bottom = placed.y[a], placed.y[b]
    if placed.x[a] != placed.x[b]:
        x, u = placed.x[a] + sizes[a][0] // 2, placed.x[b] + sizes[b][0] // 2
        y, v = (top + _HEIGHT, bottom) if top < bottom else (top, bottom + _HEIGHT)
        path = f"M{x},{y} C{x},{(y + v) // 2} {u},{(y + v) // 2} {u},{v}"
    elif top < bottom and not _between(a, b, placed):
        x = placed.x[a] + 20
        path = f"M{x},{top + _HEIGHT} V{bottom}"
    else:
        # Past others in the same column: an arc on the left, the wider the further.
        x, way = placed.x[a], 1 if top < bottom else -1
        y, v = top + _HEIGHT // 2 + 14 * way, bottom + _HEIGHT // 2 - 14 * way
        bulge = min(46, 18 + abs(v - y) // 20)
        path = f"M{x},{y} C{x - bulge},{y} {x - bulge},{v} {x},{v}"
    said = f"feeds, {plural(edge.count, 'pair')} of calls"
    return [f'    <path class="flow" d="{path}" marker-end="url(#flow-head)"><title>{said}</title></path>']


def _between(a: int, b: int, placed: Layout) -> bool:
    """Whether another box of the column lies between two."""
    return any(x == placed.x[a] and placed.y[a] < y < placed.y[b] for x, y in zip(placed.x, placed.y, strict=True))


def _head(name: str, colour: str) -> str:
    return (
        f'    <marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
    )


def _xml(text: str) -> str:
    """Text for XML, line breaks kept; what XML 1.0 cannot hold is made visible, lone surrogates too."""
    lines = (plain(line) for line in text.split("\n"))
    return escape("\n".join("".join("\ufffd" if c in "\ufffe\uffff" else c for c in line) for line in lines))
