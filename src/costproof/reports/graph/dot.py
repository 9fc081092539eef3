"""The grouped view as DOT text, for Graphviz and everything that reads it."""

from __future__ import annotations

from costproof.reports.graph.names import plain
from costproof.reports.graph.text import figures, repetition, shared, tooltip
from costproof.reports.graph.view import GraphView, Node


def dot(view: GraphView) -> str:
    """A digraph: boxes are families of modules, solid arrows calls, dashed arrows data."""
    lines = ["digraph callgraph {"]
    lines.append(f"  graph [label={_quoted(_label(view))}, labelloc=t, rankdir=LR, fontname=Helvetica];")
    lines.append('  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10];')
    lines.append("  edge [fontname=Helvetica, fontsize=9, arrowsize=0.7];")
    lines += [f"  {n.id} [{_node(n)}];" for n in view.nodes]
    several = shared(view)
    for edge in view.calls:
        label = f' [label="×{edge.count}"]' if edge.target in several else ""
        lines.append(f"  {edge.source} -> {edge.target}{label};")
    for edge in view.flow:
        lines.append(f"  {edge.source} -> {edge.target} [style=dashed, color=steelblue, constraint=false];")
    return "\n".join([*lines, "}", ""])


def _label(view: GraphView) -> str:
    return "\n".join([view.title, *view.head])


def _node(node: Node) -> str:
    words = [repetition(node), node.class_name, node.pattern, figures(node)]
    found = [f"label={_quoted(chr(10).join(w for w in words if w))}", f"tooltip={_quoted(chr(10).join(tooltip(node)))}"]
    if node.link:
        found.append(f"URL={_quoted(node.link)}")
    if not node.ran:
        found.append('style="rounded,dashed", color=gray, fontcolor=gray')
    elif node.loops:
        found.append("fillcolor=" + ("honeydew" if node.loops[0].startswith("for") else "aliceblue"))
    return ", ".join(found)


def _quoted(text: str) -> str:
    """A DOT string. Line breaks stay breaks; a backslash in a name must not start one of DOT's own escapes."""
    lines = [plain(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    # An entity in a name would be read as a character.
    return (
        '"' + "\\n".join(line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in lines) + '"'
    )
