"""The words on a node and in its tooltip, the same in every format."""

from __future__ import annotations

from typing import Final

from costproof.reports.graph.names import plain
from costproof.reports.graph.picture import GraphView, Node
from costproof.reports.numbers import exact, human, plural, some

_ORDER: Final = 12


def repetition(node: Node) -> str:
    """``for 12``, ``parfor 2 · for 3``; empty for one module called once."""
    return " · ".join(node.loops)


def figures(node: Node) -> str:
    """Calls, parameters and FLOPs in one line; what is zero is left out, what is unknown is ``?``."""
    if not node.ran:
        return "not executed" + (f" · {human(node.params)} params" if node.params else "")
    parts = [_calls(node)]
    if node.not_executed:
        parts.append(f"{node.not_executed} of {len(node.instances)} not executed")
    if node.params != 0:
        parts.append(f"{human(node.params)} params")
    if node.flops != 0:
        parts.append(human(node.flops, "FLOP"))
    return " · ".join(parts)


def _calls(node: Node) -> str:
    return "? calls" if node.calls is None else plural(node.calls, "call")


def tooltip(node: Node) -> list[str]:
    """Everything about a node, line by line."""
    ran = f", {node.not_executed} not executed" if node.not_executed else ""
    lines = [
        plain(node.label),
        *([repetition(node)] if node.loops else []),
        f"{_calls(node)} of {plural(len(node.instances), 'module')}{ran}",
        f"params: {exact(node.params)}",
        f"FLOP: {exact(node.flops)}",
    ]
    if node.order:
        lines.append("in the order " + some([*map(plain, node.order)], _ORDER))
    lines += [f"in: {plain(t)}" for t in node.inputs]
    lines += [f"out: {plain(t)}" for t in node.outputs]
    if node.hidden:
        lines.append(f"{plural(node.hidden, 'family', 'families')} below not shown")
    return lines


def shared(view: GraphView) -> frozenset[str]:
    """Nodes with several callers: only there a count beside an arrow says more than the node does."""
    callers: dict[str, set[str]] = {}
    for edge in view.calls:
        callers.setdefault(edge.target, set()).add(edge.source)
    return frozenset(target for target, sources in callers.items() if len(sources) > 1)
