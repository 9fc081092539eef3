"""Define the picture of a callgraph: families of modules as boxes, arrows between them, and their labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.escape import plain
from costproof.views.module_tree import natural
from costproof.views.numbers import exact, first_names, human, share

_ORDER: Final = 12
"""Paths that a tooltip names."""


@dataclass(frozen=True, slots=True)
class Node:
    """A family of modules drawn as one box. A view adds the costs from the ledgers."""

    id: str
    """``n0``, ``n1`` …: the same for one capture and prefix, whatever else is chosen."""
    class_name: str
    pattern: str
    """The paths of the modules as one pattern, ``model.layers.[0-11]``."""
    instances: tuple[str, ...]
    """Their paths in the order in which they feed each other or are called."""
    loops: tuple[str, ...]
    """``for 12``: so many distinct modules in series, the output of each feeding the next. ``parfor 2``: so many
    modules beside each other, or so many calls of one module by one call of its caller; ``parfor 1-3`` where callers,
    or calls of a caller, differ. Outermost first; empty for one module that is called once."""
    calls: int | None
    """Summed over the instances; at the workload, where a source has them."""
    not_executed: int
    """Instances that never ran."""
    depth: int
    """Number of calls below the outermost node."""
    params: int | None = None
    """Elements of parameters of the modules and of all inside them; ``None`` if unknown."""
    flops: int | None = None
    """Matmul-like FLOPs of the modules and of all inside them."""
    moved: int | None = None
    """Bytes read and written by the modules and all inside them; of an operator, as if it ran unfused."""
    inputs: tuple[str, ...] = ()
    """Tensors of the first call of the first instance that ran: ``[1, 3, 1024, 1024] bfloat16``."""
    outputs: tuple[str, ...] = ()
    whole: int | None = None
    """Matmul-like FLOPs of the whole picture, the denominator of the share."""
    experts: str = ""
    """``64 experts, top 6``, of modules that route."""
    hidden: int = 0
    """Families that it calls and that are left out."""
    link: str = ""

    @property
    def ran(self) -> bool:
        """Return whether any of the instances ran."""
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
        """Return calls, parameters, FLOPs and bytes moved in one line; zeros are left out."""
        params = [f"{human(self.params)} params"] if self.params or (self.params is None and self.ran) else []
        if not self.ran:
            return " · ".join(["not executed", *params])
        idle = [f"{self.not_executed} of {len(self.instances)} not executed"] if self.not_executed else []
        return " · ".join([self._calls, *idle, *params, *self.work, *self.traffic])

    @property
    def traffic(self) -> list[str]:
        """Return the bytes moved, if known and not zero; the tooltip states if they are unknown."""
        return [human(self.moved, "B") + " moved"] if self.moved else []

    @property
    def work(self) -> list[str]:
        """Return the FLOPs with their share, unless they are zero, and the number of experts."""
        part = f" ({self.share})" if self.share else ""
        return [*([human(self.flops, "FLOP") + part] if self.flops != 0 else []), *filter(None, [self.experts])]

    @property
    def share(self) -> str:
        """Return the share of all FLOPs: ``35.3 %``; empty if unknown, all of them, or below one in a thousand."""
        known = self.flops is not None and self.whole is not None
        return share(self.flops, self.whole) if known and self.whole != self.flops and self.part_of(1000) else ""

    def part_of(self, length: int) -> int:
        """Return the share of the FLOPs on a bar of this length, rounded down; 0 if unknown."""
        return length * self.flops // self.whole if self.flops and self.whole else 0

    @property
    def tooltip(self) -> list[str]:
        """Return all known facts, line by line."""
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
    """An arrow between two nodes by id."""

    source: str
    target: str
    count: int
    """Calls (0 for a target that never ran), or pairs of calls where the first feeds the second."""


@dataclass(frozen=True, slots=True)
class GraphView:
    """A picture to draw: nodes, arrows, title and notes."""

    title: str
    nodes: tuple[Node, ...]
    """Outermost first, siblings in the order of their calls."""
    calls: tuple[Edge, ...]
    flow: tuple[Edge, ...]
    """Data, between nodes that one node calls."""
    notes: tuple[str, ...] = ()
    """Caveats: omissions, missing numbers, contradictions."""
    about: tuple[str, ...] = ()
    """The model's configuration and the workload."""
    legend: str = (
        "for N: N modules in series · parfor N: N modules side by side, or N calls of one · grey: calls · dashed: data"
        " · orange: share of the FLOPs"
    )
    down: bool = False
    """Whether it is read from top to bottom and its arrows are data, all in :attr:`calls`: a program of operators."""

    def said(self, edge: Edge) -> str:
        """Return the meaning of an arrow of :attr:`calls`."""
        return f"feeds, {plural(edge.count, 'pair')} of operators" if self.down else plural(edge.count, "call")

    @property
    def head(self) -> tuple[str, ...]:
        """Return the lines below the title."""
        return (*self.about, *self.notes)

    @property
    def counted(self) -> frozenset[Edge]:
        """Return the arrows of :attr:`calls` whose count differs from the number of calls of their target."""
        if self.down:
            times = {n.id: n.calls for n in self.nodes}
            return frozenset(e for e in self.calls if e.count != times[e.target])
        callers = Counter(target for _, target in {(e.source, e.target) for e in self.calls})
        return frozenset(e for e in self.calls if callers[e.target] > 1)
