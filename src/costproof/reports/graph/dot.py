"""The grouped view as DOT text, for Graphviz and everything that reads it."""

from __future__ import annotations

from html import escape
from typing import Final

from costproof.reports.escape import plain
from costproof.reports.graph.picture import GraphView, Node

_LOOKS: Final = {
    "idle": 'style="rounded,dashed", color=gray, fontcolor=gray',
    "for": "fillcolor=honeydew",
    "parfor": "fillcolor=aliceblue",
}


def dot(view: GraphView) -> str:
    """A digraph: boxes are families of modules, solid arrows calls, dashed arrows data."""
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
    """A DOT string. Line breaks stay breaks; a backslash in a name must not start one of DOT's own escapes."""
    lines = [plain(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    # An entity in a name would be read as a character.
    return '"' + "\\n".join(escape(line, quote=False) for line in lines) + '"'
