"""Write a view of a callgraph as DOT for Graphviz, and as a Mermaid flowchart."""

from __future__ import annotations

import re
from html import escape
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.escape import plain, shorten
from costproof.reports.graph.picture import GraphView, Node

_LOOKS: Final = {
    "idle": 'style="rounded,dashed", color=gray, fontcolor=gray',
    "for": "fillcolor=honeydew",
    "parfor": "fillcolor=aliceblue",
}


def dot(view: GraphView) -> str:
    """Return a DOT digraph: boxes are families of modules, solid arrows calls, dashed arrows data."""
    label = "\n".join([view.title, *view.head])
    lines = [
        "digraph callgraph {",
        f"  graph [label={_quoted(label)}, labelloc=t, rankdir={'TB' if view.down else 'LR'}, fontname=Helvetica];",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10];',
        "  edge [fontname=Helvetica, fontsize=9, arrowsize=0.7];",
        *(f"  {n.id} [{_node(n)}];" for n in view.nodes),
    ]
    counted = view.counted
    for edge in view.calls:
        times = f' [label="×{edge.count}"]' if edge in counted else ""
        lines.append(f"  {edge.source} -> {edge.target}{times};")
    lines += [f"  {e.source} -> {e.target} [style=dashed, color=steelblue, constraint=false];" for e in view.flow]
    return "\n".join([*lines, "}", ""])


def _node(node: Node) -> str:
    words = [node.repetition, node.class_name, node.pattern, node.figures]
    found = [f"label={_quoted(chr(10).join(w for w in words if w))}", f"tooltip={_quoted(chr(10).join(node.tooltip))}"]
    if node.link:
        found.append(f"URL={_quoted(node.link)}")
    found += [_LOOKS[node.look]] if node.look else []
    # The more of the work a box has the thicker is its border: 1 to 6 points.
    found += [f"penwidth={1 + node.part_of(50) / 10:g}"] if node.part_of(50) else []
    return ", ".join(found)


def _quoted(text: str) -> str:
    """Return a DOT string in which line breaks stay breaks and backslashes start no escape."""
    lines = [plain(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    # An entity in a name would be read as a character.
    return '"' + "\\n".join(escape(line, quote=False) for line in lines) + '"'


MAX_NODES: Final = 100
MAX_EDGES: Final = 400
MAX_TEXT: Final = 50_000
"""Characters. Mermaid's own limits are 50,000 characters and 500 edges; beyond 100 nodes nothing can be read."""

_MERMAID_PLAIN: Final = re.compile(r"[^A-Za-z0-9 _.,:/()\[\]{}@+×·…\-]")
_MERMAID_WIDTH: Final = 90
_MERMAID_CLASSES: Final = {"for": "series", "parfor": "parallel"}


def mermaid(view: GraphView) -> str:
    """Return a Mermaid flowchart: boxes are families of modules, solid arrows calls, dotted arrows data.

    Where it would be too large, the deepest nodes are left out first, of those the ones with the least work; then
    data arrows, then arrows of calls. A last node says how many.
    """
    count = min(len(view.nodes), MAX_NODES - 1 if len(view.nodes) > MAX_NODES else MAX_NODES)
    while True:
        text = _flowchart(view, count)
        if len(text) <= MAX_TEXT or count == 1:
            return text
        count = max(1, min(count - 1, count * MAX_TEXT // len(text)))


def _flowchart(view: GraphView, count: int) -> str:
    kept = {n.id for n in sorted(view.nodes, key=lambda n: (n.depth, -(n.flops or 0)))[:count]}
    nodes = [n for n in view.nodes if n.id in kept]
    calls = [e for e in view.calls if e.source in kept and e.target in kept]
    flow = [e for e in view.flow if e.source in kept and e.target in kept]
    drawn_calls = calls[:MAX_EDGES]
    drawn_flow = flow[: MAX_EDGES - len(drawn_calls)]
    arrows = len(view.calls) + len(view.flow) - len(drawn_calls) - len(drawn_flow)
    lost = [plural(n, what) for n, what in ((len(view.nodes) - len(nodes), "node"), (arrows, "arrow")) if n]
    counted = view.counted
    lines = [f"flowchart {'TD' if view.down else 'LR'}", *(f"  {_mermaid_box(n)}" for n in nodes)]
    for edge in drawn_calls:
        lines.append(f"  {edge.source} -->{f'|×{edge.count}|' if edge in counted else ''} {edge.target}")
    lines += [f"  {e.source} -.-> {e.target}" for e in drawn_flow]
    said = [view.title, *view.head, *([f"left out here: {' and '.join(lost)}"] if lost else [])]
    lines.append(f'  note["{"<br/>".join(_mermaid_text(s) for s in said)}"]:::note')
    lines += [
        "  classDef series fill:#eaf6ec,stroke:#3b7f4a,color:#111",
        "  classDef parallel fill:#e8f1fb,stroke:#3a6ea5,color:#111",
        "  classDef idle fill:#f6f6f6,stroke:#999,color:#777,stroke-dasharray:4 3",
        "  classDef note fill:#fff8e1,stroke:#c9a227,color:#333",
    ]
    return "\n".join([*lines, ""])


def _mermaid_box(node: Node) -> str:
    head = f"{node.repetition}: {node.class_name}" if node.loops else node.class_name
    words = [head, shorten(plain(node.pattern), _MERMAID_WIDTH), node.figures]
    kind = _MERMAID_CLASSES.get(node.look, node.look)
    return f'{node.id}["{"<br/>".join(_mermaid_text(w) for w in words)}"]' + (f":::{kind}" if kind else "")


def _mermaid_text(text: str) -> str:
    """Replace every character that Mermaid, Markdown or HTML could interpret by its character code."""
    return _MERMAID_PLAIN.sub(lambda m: f"#{ord(m.group())};", shorten(plain(text), 2 * _MERMAID_WIDTH))
