"""Define the picture of a callgraph (boxes, arrows, labels), and write it as DOT and as Mermaid."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.escape import plain, shorten
from costproof.views.module_tree import natural
from costproof.views.numbers import exact, first_names, human, share

_ORDER: Final = 12
"""Maximum number of module paths that a tooltip names."""


@dataclass(frozen=True, slots=True)
class Node:
    """A family of modules, drawn as one box with the costs from the ledgers."""

    id: str
    """Box id ``n0``, ``n1`` …, which depends only on the capture and the prefix."""
    class_name: str
    pattern: str
    """The paths of the modules as one pattern, ``model.layers.[0-11]``."""
    instances: tuple[str, ...]
    """Paths of the modules, ordered by data flow or by calls."""
    loops: tuple[str, ...]
    """Repetition, outermost first: ``for 12``: 12 modules in series, ``parfor 2``: 2 parallel modules or calls of one.

    In a series the output of each module feeds the next. Parallel calls are those of one module by one call of its
    caller; ``parfor 1-3`` where callers, or calls of a caller, differ. Empty for one module that is called once.
    """
    calls: int | None
    """Calls of all instances, at the counted workload if a source has them."""
    not_executed: int
    """Number of instances that never ran."""
    depth: int
    """Number of nested calls from the outermost node to this one."""
    params: int | None = None
    """Number of parameters of the modules and their submodules; ``None`` if unknown."""
    flops: int | None = None
    """Matmul-like FLOPs of the modules and their submodules; ``None`` if unknown."""
    moved: int | None = None
    """Bytes read and written by the modules and their submodules; for a single operator, the bytes without fusion."""
    inputs: tuple[str, ...] = ()
    """Input tensors of the first call of the first instance that ran: ``[1, 3, 1024, 1024] bfloat16``."""
    outputs: tuple[str, ...] = ()
    whole: int | None = None
    """Matmul-like FLOPs of the whole picture, by which the share is computed."""
    experts: str = ""
    """Routed experts of the modules: ``64 experts, top 6``; empty if the modules do not route."""
    hidden: int = 0
    """Number of called families that the picture leaves out."""
    link: str = ""

    @property
    def ran(self) -> bool:
        """Return whether any instance of the family ran."""
        return self.not_executed < len(self.instances)

    @property
    def look(self) -> str:
        """Return the style of the box: ``idle``, ``for``, ``parfor``, or plain."""
        return "idle" if not self.ran else self.loops[0].partition(" ")[0] if self.loops else ""

    @property
    def repetition(self) -> str:
        """Return the loops: ``for 12``, ``parfor 2 · for 3``; empty for one module called once."""
        return " · ".join(self.loops)

    @property
    def figures(self) -> str:
        """Return calls, parameters, FLOPs and bytes moved in one line, omitting zeros."""
        params = [f"{human(self.params)} params"] if self.params or (self.params is None and self.ran) else []
        if not self.ran:
            return " · ".join(["not executed", *params])
        idle = [f"{self.not_executed} of {len(self.instances)} not executed"] if self.not_executed else []
        return " · ".join([self._calls, *idle, *params, *self.work, *self.traffic])

    @property
    def traffic(self) -> list[str]:
        """Return the text for the bytes moved; empty if they are 0 or unknown."""
        return [human(self.moved, "B") + " moved"] if self.moved else []

    @property
    def work(self) -> list[str]:
        """Return the texts for the FLOPs of the family with their share, if not zero, and for its experts, if any."""
        part = f" ({self.share})" if self.share else ""
        return [*([human(self.flops, "FLOP") + part] if self.flops != 0 else []), *filter(None, [self.experts])]

    @property
    def share(self) -> str:
        """Return the share of all FLOPs: ``35.3 %``; empty if unknown, 100 % or below 0.1 %."""
        known = self.flops is not None and self.whole is not None
        return share(self.flops, self.whole) if known and self.whole != self.flops and self.part_of(1000) else ""

    def part_of(self, length: int) -> int:
        """Return the length that the FLOPs' share takes of a bar of ``length`` units, rounded down; 0 if unknown."""
        return length * self.flops // self.whole if self.flops and self.whole else 0

    @property
    def tooltip(self) -> list[str]:
        """Return all known facts about the family, one per line."""
        ran = f", {self.not_executed} not executed" if self.not_executed else ""
        series = any(loop.startswith("for") for loop in self.loops)
        # Paths as they feed each other, where that is not the order of their names.
        other = series and list(self.instances) != sorted(self.instances, key=natural)
        return [
            plain(f"{self.class_name} @ {self.pattern}"),
            *([self.repetition] if self.loops else []),
            f"{self._calls} of {plural(len(self.instances), 'module')}{ran}",
            f"params: {exact(self.params)}",
            f"FLOP: {exact(self.flops)}" + (f", {self.share} of {exact(self.whole)}" if self.share else ""),
            f"bytes moved: {exact(self.moved)}",
            *filter(None, [self.experts]),
            *([f"in the order {first_names([*map(plain, self.instances)], _ORDER)}"] if other else []),
            *(f"in: {plain(t)}" for t in self.inputs),
            *(f"out: {plain(t)}" for t in self.outputs),
            *([f"{plural(self.hidden, 'family', 'families')} below not shown"] if self.hidden else []),
        ]

    @property
    def _calls(self) -> str:
        return "? calls" if self.calls is None else plural(self.calls, "call")


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow between two nodes, which are given by id."""

    source: str
    target: str
    count: int
    """Number of calls, or of (producer, consumer) call pairs; 0 for a target that never ran."""


@dataclass(frozen=True, slots=True)
class GraphView:
    """A picture to draw: nodes, arrows, title and notes."""

    title: str
    nodes: tuple[Node, ...]
    """Outermost first, siblings in the order of their calls."""
    calls: tuple[Edge, ...]
    flow: tuple[Edge, ...]
    """Data-flow arrows between nodes with the same caller."""
    notes: tuple[str, ...] = ()
    """Caveats on the picture: omissions, missing numbers, contradictions."""
    about: tuple[str, ...] = ()
    """Lines that name the model's configuration and the workload."""
    legend: str = (
        "for N: N modules in series · parfor N: N modules side by side, or N calls of one · grey: calls · dashed: data"
        " · orange: share of the FLOPs"
    )
    down: bool = False
    """Whether the picture shows operators, from top to bottom, with only data arrows, all in :attr:`calls`."""

    def said(self, edge: Edge) -> str:
        """Return the tooltip of an arrow in :attr:`calls`: its number of calls, or of connected operator pairs."""
        return f"feeds, {plural(edge.count, 'pair')} of operators" if self.down else plural(edge.count, "call")

    @property
    def head(self) -> tuple[str, ...]:
        """Return the lines of text below the title of the picture."""
        return (*self.about, *self.notes)

    @property
    def counted(self) -> frozenset[Edge]:
        """Return the call arrows to label with a count, since it differs from the number of calls in the target box."""
        if self.down:
            times = {n.id: n.calls for n in self.nodes}
            return frozenset(e for e in self.calls if e.count != times[e.target])
        callers = Counter(target for _, target in {(e.source, e.target) for e in self.calls})
        return frozenset(e for e in self.calls if callers[e.target] > 1)


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
    """Return a DOT string that keeps line breaks and in which no backslash starts an escape."""
    lines = [plain(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    # An entity in a name would be read as a character.
    return '"' + "\\n".join(escape(line, quote=False) for line in lines) + '"'


MAX_NODES: Final = 100
MAX_EDGES: Final = 400
MAX_TEXT: Final = 50_000
"""Maximum number of characters of a Mermaid chart.

Mermaid's own limits are 50,000 characters and 500 edges; beyond 100 nodes nothing can be read.
"""

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
        text = "\n".join([*lines, ""])
        if len(text) <= MAX_TEXT or count == 1:
            return text
        count = max(1, min(count - 1, count * MAX_TEXT // len(text)))


def _mermaid_box(node: Node) -> str:
    head = f"{node.repetition}: {node.class_name}" if node.loops else node.class_name
    words = [head, shorten(plain(node.pattern), _MERMAID_WIDTH), node.figures]
    kind = _MERMAID_CLASSES.get(node.look, node.look)
    return f'{node.id}["{"<br/>".join(_mermaid_text(w) for w in words)}"]' + (f":::{kind}" if kind else "")


def _mermaid_text(text: str) -> str:
    """Replace every character that Mermaid, Markdown or HTML could interpret by its character code."""
    return _MERMAID_PLAIN.sub(lambda m: f"#{ord(m.group())};", shorten(plain(text), 2 * _MERMAID_WIDTH))
