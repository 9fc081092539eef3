"""The picture of a callgraph as data, from the families that are found to the boxes and arrows that are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.reports.graph.names import natural


@dataclass(frozen=True, slots=True)
class Node:
    """A family: modules that are drawn as one box. Until a view adds them, it has no numbers of the ledgers."""

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
    """Calls below the outermost node."""
    params: int | None = None
    """Elements of parameters of the modules and of all inside them; ``None`` if unknown."""
    flops: int | None = None
    """Matmul-like FLOPs likewise."""
    inputs: tuple[str, ...] = ()
    """Tensors of the first call of the first instance that ran: ``[1, 3, 1024, 1024] bfloat16``."""
    outputs: tuple[str, ...] = ()
    hidden: int = 0
    """Families that it calls and that are left out."""
    link: str = ""

    @property
    def label(self) -> str:
        """``Class @ pattern``."""
        return f"{self.class_name} @ {self.pattern}"

    @property
    def ran(self) -> bool:
        """Whether any of the instances ran."""
        return self.not_executed < len(self.instances)

    @property
    def look(self) -> str:
        """How the box is drawn: ``idle``, ``for``, ``parfor``, or plain."""
        return "idle" if not self.ran else self.loops[0].partition(" ")[0] if self.loops else ""

    @property
    def order(self) -> tuple[str, ...]:
        """Paths as they feed each other, where that is not the order of their names."""
        series = any(loop.startswith("for") for loop in self.loops)
        return self.instances if series and list(self.instances) != sorted(self.instances, key=natural) else ()


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow between two nodes by id."""

    source: str
    target: str
    count: int
    """Calls, 0 to what never ran; or pairs of calls of which the first feeds the second."""


@dataclass(frozen=True, slots=True)
class GraphView:
    """Nodes and arrows."""

    title: str
    nodes: tuple[Node, ...]
    """Outermost first, siblings in the order of their calls."""
    calls: tuple[Edge, ...]
    flow: tuple[Edge, ...]
    """Data, between nodes that one node calls."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: what is left out, what the numbers lack, what contradicts itself."""
    about: tuple[str, ...] = ()
    """The model's configuration and the workload."""

    @property
    def head(self) -> tuple[str, ...]:
        """The lines below the title."""
        return (*self.about, *self.notes)
