"""The part of a grouped callgraph to show, with the numbers of the ledgers: what every writer draws."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from costproof.ledger.callgraph import CallGraph, TensorAt
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.reports.absent import callgraph_of
from costproof.reports.callgraph_json import CallGraphFile, Drawable
from costproof.reports.describe import model_line, workload_line
from costproof.reports.graph.checks import mark_problems
from costproof.reports.graph.choice import Choice, check
from costproof.reports.graph.costs import Numbers, numbers
from costproof.reports.graph.grouping import Family, Grouped, group
from costproof.reports.graph.structure import inside, natural

_TOLD: Final = (Capture, CallGraphFile)
"""What says of which model and workload it is."""
PAGE: Final = 60
"""Nodes that fit on one page: the depth that is shown unless one is asked for is the deepest with no more."""


@dataclass(frozen=True, slots=True)
class Node:
    """A family with its numbers."""

    id: str
    """``n0``, ``n1`` …: the same for one capture and prefix, whatever else is chosen."""
    class_name: str
    pattern: str
    loops: tuple[str, ...]
    """``for 12``, ``parfor 2``; outermost first."""
    calls: int | None
    """At the workload, where a source has them."""
    instances: int
    not_executed: int
    """Instances that never ran."""
    params: int | None
    """Elements of parameters of the modules and of all inside them; ``None`` if unknown."""
    flops: int | None
    """Matmul-like FLOPs likewise."""
    inputs: tuple[str, ...]
    """Tensors of the first call of the first instance: ``[1, 3, 1024, 1024] bfloat16``."""
    outputs: tuple[str, ...]
    depth: int
    """Calls below the outermost node shown."""
    order: tuple[str, ...]
    """Paths as they feed each other, where that is not the order of their names."""
    hidden: int
    """Families that it calls and that are left out."""
    link: str = ""

    @property
    def label(self) -> str:
        """``Class @ pattern``."""
        return f"{self.class_name} @ {self.pattern}"

    @property
    def ran(self) -> bool:
        """Whether any of the instances ran."""
        return self.not_executed < self.instances


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow between two nodes by id."""

    source: str
    target: str
    count: int
    """Calls, or pairs of calls of which the first feeds the second."""


@dataclass(frozen=True, slots=True)
class GraphView:
    """Nodes and arrows to draw."""

    title: str
    nodes: tuple[Node, ...]
    """Outermost first, siblings in the order of their calls."""
    calls: tuple[Edge, ...]
    flow: tuple[Edge, ...]
    notes: tuple[str, ...]
    """What a reader has to know: what is left out, what the numbers lack, what contradicts itself."""
    about: tuple[str, ...] = ()
    """The model's configuration and the workload."""

    @property
    def head(self) -> tuple[str, ...]:
        """The lines below the title."""
        return (*self.about, *self.notes)


def graph_view(drawn: Drawable, choice: Choice | None = None) -> GraphView:
    """Group the callgraph of a capture, or one that was written apart, and pick what to show.

    Raises:
        Absent: the capture was made without the dynamic source.
        BadInput: no module is left to show, or the depth is negative.
    """
    chosen = choice or Choice()
    whole, ledgers = (callgraph_of(drawn), drawn.ledgers) if isinstance(drawn, Capture) else (drawn, ())
    stages = drawn.target.stages if isinstance(drawn, _TOLD) else ()
    check(chosen, stages, {*whole.module_types, *whole.call_counts})
    # Grouped anew inside a prefix: a block of a series is one block there.
    graph = whole if chosen.prefix is None else inside(whole, chosen.prefix)
    grouped = replace(group(graph), by_flow=bool(whole.data_edges))
    costs = numbers(ledgers, whole, chosen.stage)
    every = chosen.stage is None
    picked = [f.index for f in grouped.families if every or not costs.modules.isdisjoint(f.instances)]
    if chosen.heavy:
        picked = _leading(grouped, [i for i in picked if costs.owns_work(grouped.families[i].instances)], picked)
    if not picked:
        raise BadInput("no module is left to show", where="costproof graph", fix="ask for less: drop an option")
    depths = _depths(grouped, picked)
    deepest = _page(depths) if chosen.depth is None else chosen.depth
    shown = [i for i in picked if depths[i] <= deepest]
    left = set(picked) - set(shown)
    hidden = Counter(a.source for a in grouped.calls if a.target in left)
    names = {i: f"n{i}" for i in shown}
    return GraphView(
        title=_title(drawn, chosen),
        nodes=tuple(_node(grouped.families[i], whole, costs, depths[i], hidden[i], chosen.link) for i in shown),
        calls=tuple(
            Edge(names[a.source], names[a.target], a.count) for a in grouped.calls if {a.source, a.target} <= {*names}
        ),
        flow=tuple(Edge(names[a], names[b], n) for (a, b), n in sorted(_flow(grouped, picked, set(shown)).items())),
        about=_about(drawn),
        notes=tuple(_notes(drawn, whole, grouped, len(left), deepest)),
    )


def _title(drawn: Drawable, chosen: Choice) -> str:
    parts = [f"{drawn.target.name} at {drawn.workload.name}" if isinstance(drawn, _TOLD) else "callgraph"]
    parts += [f"stage {chosen.stage}"] if chosen.stage else []
    parts += [f"below {chosen.prefix}"] if chosen.prefix else []
    parts += ["heavy modules only"] if chosen.heavy else []
    return ", ".join(parts)


def _about(drawn: Drawable) -> tuple[str, ...]:
    if not isinstance(drawn, _TOLD):
        return ()
    return model_line(drawn.target), f"{drawn.workload.name}: {workload_line(drawn.workload)}"


def _leading(grouped: Grouped, heavy: Sequence[int], allowed: Sequence[int]) -> list[int]:
    """Families and all that call them, directly or not."""
    callers: dict[int, list[int]] = defaultdict(list)
    for arrow in grouped.calls:
        callers[arrow.target].append(arrow.source)
    found: set[int] = set()
    todo = list(heavy)
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            todo += callers[index]
    return [i for i in allowed if i in found]


def _depths(grouped: Grouped, picked: Sequence[int]) -> dict[int, int]:
    """Calls below the outermost picked family; a caller that is not picked does not count."""
    inside = set(picked)
    callees: dict[int, list[int]] = defaultdict(list)
    called: set[int] = set()
    for arrow in grouped.calls:
        if arrow.source in inside and arrow.target in inside and arrow.source != arrow.target:
            callees[arrow.source].append(arrow.target)
            called.add(arrow.target)
    depths: dict[int, int] = {}
    # Families of a circle of calls are all called: the one found first leads.
    for start in [*(i for i in picked if i not in called), *picked]:
        if start in depths:
            continue
        depths[start] = 0
        todo = [start]
        for index in todo:
            for callee in callees[index]:
                if callee not in depths or depths[callee] > depths[index] + 1:
                    if callee not in depths:
                        todo.append(callee)
                    depths[callee] = depths[index] + 1
    return depths


def _page(depths: dict[int, int]) -> int:
    fits = [d for d in sorted(set(depths.values())) if sum(1 for x in depths.values() if x <= d) <= PAGE]
    return fits[-1] if fits else 0


def _flow(grouped: Grouped, picked: Sequence[int], shown: set[int]) -> dict[tuple[int, int], int]:
    """Arrows between shown families; the way through families that are not picked (norms) is one arrow."""
    through = {f.index for f in grouped.families} - set(picked)
    targets: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for arrow in grouped.flow:
        targets[arrow.source].append((arrow.target, arrow.count))
    found: dict[tuple[int, int], int] = {}
    for source in sorted(shown):
        seen: set[int] = set()
        todo = [(t, n) for t, n in targets[source]]
        while todo:
            target, count = todo.pop(0)
            if target in shown and target != source:
                found[source, target] = max(count, found.get((source, target), 0))
            elif target in through and target not in seen:
                seen.add(target)
                todo += targets[target]
    return found


def _node(family: Family, graph: CallGraph, costs: Numbers, depth: int, hidden: int, link: str | None) -> Node:
    ran = next((p for p in family.instances if p in graph.call_counts), family.instances[0])
    return Node(
        id=f"n{family.index}",
        class_name=family.class_name,
        pattern=family.pattern,
        loops=tuple(loop.text for loop in family.loops),
        calls=costs.calls(family.instances, family.calls),
        instances=len(family.instances),
        not_executed=len(family.not_executed),
        params=costs.inside("params", family.instances),
        flops=costs.inside("flops", family.instances),
        inputs=_tensors(graph.input_metadata.get(ran, ())),
        outputs=_tensors(graph.output_metadata.get(ran, ())),
        depth=depth,
        order=_order(family),
        hidden=hidden,
        link=_filled(link or "", ran, family.class_name),
    )


def _order(family: Family) -> tuple[str, ...]:
    series = any(loop.kind == "for" for loop in family.loops)
    return family.instances if series and list(family.instances) != sorted(family.instances, key=natural) else ()


def _filled(link: str, path: str, class_name: str) -> str:
    """The address with path and class put in, so quoted that they cannot change what it leads to."""
    names = {"{path}": path, "{class}": class_name}
    return re.sub(r"\{(path|class)\}", lambda m: quote(names[m.group()], errors="backslashreplace"), link)


def _tensors(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(
        f"[{', '.join(map(str, v.shape))}] {v.dtype}"
        for v in values
        if isinstance(v, TensorAt) and v.call == 1 and v.kind == "tensor"
    )


def _notes(drawn: Drawable, graph: CallGraph, grouped: Grouped, left: int, deepest: int) -> list[str]:
    said = []
    if left:
        said.append(f"{left} families of modules lie deeper than depth {deepest} and are left out")
    if not grouped.by_flow:
        said.append("there is no data flow: series are guessed from the order of calls and the shapes")
    if not isinstance(drawn, Capture):
        said.append("a callgraph alone: no parameters and no FLOPs")
    steps = sum(1 for e in graph.events if e.name == "decode_step")
    every = drawn.workload.new_tokens if isinstance(drawn, _TOLD) else 0
    if 0 < steps < every:
        said.append(f"counts beside arrows are of {steps} traced decode steps, all others of {every}")
    problems = [*grouped.problems, *(mark_problems(drawn) if isinstance(drawn, Capture) else ())]
    said += [f"contradiction: {p}" for p in problems[:5]]
    if len(problems) > 5:
        said.append(f"and {len(problems) - 5} more contradictions")
    return said
