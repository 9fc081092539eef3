"""Modules of a callgraph grouped into families, with the repetition that the calls and the data flow show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from costproof.ledger.callgraph import CallGraph
from costproof.reports.graph.picture import Edge, GraphView, Node
from costproof.reports.graph.siblings import Sibling, Slot, split
from costproof.reports.graph.structure import Structure, unnumbered
from costproof.views.module_paths import pattern


def group(graph: CallGraph) -> GraphView:
    """Group a callgraph. Every module that ran is in exactly one node, so sums over nodes are exact.

    Families are found caller by caller, outermost first; a module that several callers share belongs to the one
    nearest to the root.
    """
    structure = Structure(graph)
    counts = graph.call_counts
    nodes: list[Node] = []
    home: dict[str, int] = {}

    def add(instances: tuple[str, ...], loops: tuple[str, ...], depth: int) -> None:
        home.update(dict.fromkeys(instances, len(nodes)))
        node = Node(
            id=f"n{len(nodes)}",
            class_name=graph.module_types.get(instances[0], "?"),
            pattern=pattern(instances),
            instances=instances,
            loops=loops,
            calls=sum(counts.get(p, 0) for p in instances),
            not_executed=sum(p not in counts for p in instances),
            depth=depth,
        )
        nodes.append(node)

    for root in structure.roots:
        add((root,), (), 0)
    done = 0
    while done < len(nodes) or (left := [p for p in structure.order if p in counts and p not in home]):
        if done == len(nodes):
            add((left[0],), (), 0)  # modules that only call each other in a circle have no root among them
        caller = nodes[done]
        done += 1
        if caller.ran:
            for instances, loops in _callees(structure, caller.instances, home):
                add(instances, (*loops, *_repeats(structure, instances)), caller.depth + 1)

    called = [(a, b, n) for (a, b), n in structure.edges.items()]
    called += [(a, b, 0) for b in structure.idle for a in structure.callers[b]]
    handed = [(a, b, n) for a, targets in structure.flow.items() for b, n in targets.items()]
    flow = tuple(e for e in _edges(handed, home) if e.source != e.target)
    return GraphView("", tuple(nodes), _edges(called, home), flow)


def _callees(
    structure: Structure, members: Sequence[str], home: Mapping[str, int]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Families among what the members of a family call: instances and how they repeat under one member."""
    inside = frozenset(members)
    slots: dict[Slot, dict[str, list[str]]] = defaultdict(dict)
    when: dict[Slot, int] = {}
    for member in members:
        for callee in structure.callees.get(member, ()):
            callers = structure.callers[callee]
            # Shared with callers elsewhere: of one kind only with what the same callers share.
            kind = (structure.likeness.get(callee, callee), None if callers <= inside else tuple(sorted(callers)))
            name = callee[len(member) + 1 :] if callee.startswith(member + ".") else callee
            slots[name, kind].setdefault(member, []).append(callee)
            at = structure.order[callee] - structure.order[member]
            when[name, kind] = min(at, when.get((name, kind), at))
    siblings = []
    for slot, callees in slots.items():
        ran = any(c in structure.graph.call_counts for cs in callees.values() for c in cs)
        # Without data flow only numbers say that modules belong together.
        alike = (slot[1], None if structure.flow else unnumbered(slot[0]))
        siblings.append(Sibling(slot, alike, ran))
    siblings.sort(key=lambda s: (not s.ran, when[s.slot]))
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for part in split(siblings, _slot_flow(structure, slots)):
        below = [[c for s in part.members for c in slots[s.slot].get(m, ()) if c not in home] for m in members]
        sizes = [len(cs) for cs in below if cs]
        if sizes:
            repeats = part.kind != "one" and max(sizes) > 1
            loops = (_loop(part.kind, sizes),) if repeats else ()
            found.append((tuple(dict.fromkeys(c for cs in below for c in cs)), loops))
    return found


def _slot_flow(structure: Structure, slots: Mapping[Slot, Mapping[str, Sequence[str]]]) -> dict[Slot, set[Slot]]:
    """Which slot feeds which: by the data, or else by shapes along the order of calls."""
    place = {c: slot for slot, callees in slots.items() for cs in callees.values() for c in cs}
    found: dict[Slot, set[Slot]] = defaultdict(set)
    last: dict[Hashable, str] = {}
    for callee, slot in sorted(place.items(), key=lambda item: structure.order[item[0]]):
        if structure.flow:
            found[slot] |= {place[t] for t in structure.flow.get(callee, ()) if t in place} - {slot}
            continue
        like = unnumbered(slot[0]), slot[1]
        before = last.get(like)
        if before is not None and place[before] != slot and structure.fits(before, callee):
            found[place[before]] = {slot}
        last[like] = callee
    return found


def _repeats(structure: Structure, instances: Sequence[str]) -> tuple[str, ...]:
    """The loop over calls of one instance by one call of a caller."""
    calls = ((caller, path) for path in instances for caller in structure.callers.get(path, ()))
    spans = [n for call in calls for n in structure.per_call.get(call, ())]
    return (_loop("parfor", spans),) if max(spans, default=1) > 1 else ()


def _loop(kind: str, counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{kind} {most if least == most else f'{least}-{most}'}"


def _edges(pairs: Iterable[tuple[str, str, int]], home: Mapping[str, int]) -> tuple[Edge, ...]:
    found: dict[tuple[int, int], int] = defaultdict(int)
    for a, b, count in pairs:
        if a in home and b in home:
            found[home[a], home[b]] += count
    return tuple(Edge(f"n{a}", f"n{b}", n) for (a, b), n in sorted(found.items()))
