"""Callgraphs from a script of calls, and families as lines of text, to compare with what a person drew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from costproof.ledger.callgraph import CallGraph, Event, TensorAt
from costproof.ledger.capture import Capture
from costproof.reports.graph.picture import GraphView
from tests.support.toy import toy

Script = Sequence["str | tuple[str, Script]"]
"""What a module calls: paths, or a path and what that calls."""


def callgraph(
    types: Mapping[str, str],
    script: Script,
    flow: Sequence[str] = (),
    *,
    settings: Mapping[str, Mapping[str, int]] | None = None,
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    root: str = "Net",
) -> CallGraph:
    """A callgraph of one call of the root.

    Args:
        types: path -> class of every module but the root.
        script: what the root calls, in order.
        flow: ``a->b`` once for each time.
        shapes: path -> shape in and out.
    """
    counts: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    events: list[Event] = []

    def call(path: str, inside: Script) -> None:
        counts[path] += 1
        number = counts[path]
        events.append(Event(len(events), "enter", path, {"call": number}))
        for step in inside:
            name, more = (step, ()) if isinstance(step, str) else step
            edges[f"{path}->{name}"] += 1
            call(name, more)
        events.append(Event(len(events), "exit", path, {"call": number}))

    call("(root)", script)
    # Sorted, as in a file: the order of calls is in the events alone.
    return CallGraph(
        call_counts=dict(sorted(counts.items())),
        edges=dict(sorted(edges.items())),
        op_call_counts={},
        module_children={},
        module_types=dict(sorted({"(root)": root, **types}.items())),
        constructor_params={p: dict(v) for p, v in (settings or {}).items()},
        input_metadata={p: (TensorAt(i, "float32", "args[0]"),) for p, (i, _) in (shapes or {}).items()},
        output_metadata={p: (TensorAt(o, "float32", "output"),) for p, (_, o) in (shapes or {}).items()},
        events=tuple(events),
        data_edges=dict(sorted(Counter(flow).items())),
    )


def drawn(grouped: GraphView) -> list[str]:
    """Families as an indented outline: repetition, class, pattern, calls, and how many never ran.

    A family is written out below its first caller and named with ``^`` below others.
    """
    below: dict[str, list[str]] = {}
    for arrow in grouped.calls:
        below.setdefault(arrow.source, []).append(arrow.target)
    seen: set[str] = set()
    lines: list[str] = []
    families = {n.id: n for n in grouped.nodes}

    def write(index: str, depth: int) -> None:
        family = families[index]
        indent = "  " * depth
        if index in seen:
            lines.append(f"{indent}^ {family.pattern}")
            return
        seen.add(index)
        loops = "".join(f"{loop} " for loop in family.loops)
        idle = f" ({family.not_executed} not executed)" if family.not_executed else ""
        lines.append(f"{indent}{loops}{family.class_name} @ {family.pattern} x{family.calls}{idle}")
        for target in below.get(index, ()):
            write(target, depth + 1)

    for family in grouped.nodes:
        if family.depth == 0:
            write(family.id, 0)
    return lines


def fed(grouped: GraphView) -> list[str]:
    """Data arrows between families."""
    name = {n.id: n.pattern for n in grouped.nodes}
    return [f"{name[a.source]} -> {name[a.target]}" for a in grouped.flow]


def captured(graph: CallGraph) -> Capture:
    """A capture with that callgraph and the toy's ledgers."""
    return replace(toy(), callgraph=graph)
