"""Modules of a callgraph grouped into families, with the repetition that the calls and the data flow show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from costproof.ledger.callgraph import CallGraph
from costproof.reports.graph.checks import problems
from costproof.reports.graph.names import pattern
from costproof.reports.graph.siblings import Sibling, split
from costproof.reports.graph.structure import Structure, unnumbered


@dataclass(frozen=True, slots=True)
class Loop:
    """One kind of repetition.

    ``for``: so many distinct modules in series, the output of each feeding the next. ``parfor``: so many modules
    beside each other, or so many calls of one module by one call of its caller.
    """

    kind: Literal["for", "parfor"]
    count: int
    least: int
    """Below ``count`` where callers, or calls of a caller, differ."""
    same: bool = False
    """Calls of the same instance."""

    @property
    def text(self) -> str:
        """``for 12``, ``parfor 1-3``."""
        return f"{self.kind} {self.count if self.least == self.count else f'{self.least}-{self.count}'}"


@dataclass(frozen=True, slots=True)
class Family:
    """Modules that are drawn as one node."""

    index: int
    class_name: str
    pattern: str
    """Their paths as one pattern, ``model.layers.[0-11]``."""
    instances: tuple[str, ...]
    """Their paths in the order in which they feed each other or are called."""
    loops: tuple[Loop, ...]
    """Outermost first; empty for one module that is called once."""
    calls: int
    """Summed over the instances."""
    not_executed: tuple[str, ...]
    """Instances that never ran."""
    depth: int
    """Least number of calls between a root and the family."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """Calls, or values handed on, between two families (by index)."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class Grouped:
    """A callgraph as families."""

    families: tuple[Family, ...]
    """Outermost first, siblings in the order of their calls."""
    calls: tuple[Arrow, ...]
    """Count 0 leads to a family that never ran."""
    flow: tuple[Arrow, ...]
    """Between families that one family calls."""
    problems: tuple[str, ...]
    """Where call counts, edges and events contradict each other."""
    by_flow: bool
    """``False`` where the file has no data flow. Then like modules that are called one after the other count as a
    series if the output of each has the shape of an input of the next."""


def group(graph: CallGraph) -> Grouped:
    """Group a callgraph. Every module that ran is in exactly one family, so sums over families are exact.

    Families are found caller by caller, outermost first; a module that several callers share belongs to the one
    nearest to the root.
    """
    structure = Structure(graph)
    families: list[Family] = []
    home: dict[str, int] = {}

    def add(instances: Sequence[str], loops: tuple[Loop, ...], depth: int) -> None:
        home.update(dict.fromkeys(instances, len(families)))
        families.append(_family(structure, len(families), instances, loops, depth))

    for root in structure.roots:
        add((root,), (), 0)
    done = 0
    while done < len(families) or (left := [p for p in structure.order if p in graph.call_counts and p not in home]):
        if done == len(families):
            add((left[0],), (), 0)  # modules that only call each other in a circle have no root among them
        caller = families[done]
        done += 1
        if len(caller.not_executed) < len(caller.instances):
            for instances, loop in _callees(structure, caller.instances, home):
                add(instances, (*loop, *_repeats(structure, instances)), caller.depth + 1)

    called = [(a, b, n) for a, callees in structure.edges.items() for b, n in callees.items()]
    called += [(a, b, 0) for b in structure.idle for a in structure.callers[b]]
    handed = [(a, b, n) for a, targets in structure.flow.items() for b, n in targets.items()]
    flow = tuple(a for a in _arrows(handed, home) if a.source != a.target)
    return Grouped(tuple(families), _arrows(called, home), flow, tuple(problems(graph)), bool(graph.data_edges))


def _callees(
    structure: Structure, members: Sequence[str], home: Mapping[str, int]
) -> list[tuple[tuple[str, ...], tuple[Loop, ...]]]:
    """Families among what the members of a family call: instances and how they repeat under one member."""
    inside = frozenset(members)
    slots: dict[tuple[str, Hashable], dict[str, list[str]]] = defaultdict(dict)
    when: dict[tuple[str, Hashable], int] = {}
    for member in members:
        for callee in structure.callees.get(member, ()):
            callers = structure.callers[callee]
            # Shared with callers elsewhere: of one kind only with what the same callers share.
            kind = (structure.likeness.get(callee, callee), None if callers <= inside else tuple(sorted(callers)))
            name = callee[len(member) + 1 :] if callee.startswith(member + ".") else callee
            slots[name, kind].setdefault(member, []).append(callee)
            at = structure.order[callee] - structure.order[member]
            when[name, kind] = min(at, when.get((name, kind), at))
    ran = {s: any(c in structure.graph.call_counts for cs in slots[s].values() for c in cs) for s in slots}
    ordered = sorted(slots, key=lambda s: (not ran[s], when[s]))
    labels = {f"{i}": s for i, s in enumerate(ordered)}
    flow = _slot_flow(structure, {c: k for k, s in labels.items() for cs in slots[s].values() for c in cs}, labels)
    siblings = [
        # Without data flow only numbers say that modules belong together.
        Sibling(
            k, s[0].rpartition(".")[0], unnumbered(s[0]), (s[1], None if structure.flow else unnumbered(s[0])), ran[s]
        )
        for k, s in labels.items()
    ]
    found: list[tuple[tuple[str, ...], tuple[Loop, ...]]] = []
    for part in split(siblings, flow):
        by_member = {m: [c for k in part.names for c in slots[labels[k]].get(m, ()) if c not in home] for m in members}
        sizes = [len(cs) for cs in by_member.values() if cs]
        if sizes:
            loops = (Loop(part.kind, max(sizes), min(sizes)),) if part.kind != "one" and max(sizes) > 1 else ()
            found.append((tuple(dict.fromkeys(c for cs in by_member.values() for c in cs)), loops))
    return found


def _slot_flow(
    structure: Structure, place: Mapping[str, str], labels: Mapping[str, tuple[str, Hashable]]
) -> dict[str, list[str]]:
    """Which slot feeds which: by the data, or else by shapes along the order of calls."""
    if structure.flow:
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for callee, slot in place.items():
            for target in structure.flow.get(callee, ()):
                if target in place and place[target] != slot:
                    found[slot][place[target]] = None
        return {slot: list(targets) for slot, targets in found.items()}
    last: dict[tuple[Hashable, str], str] = {}
    guessed = {}
    for callee, slot in sorted(place.items(), key=lambda kv: structure.order[kv[0]]):
        name, kind = labels[slot]
        before = last.get((kind, unnumbered(name)))
        if before is not None and place[before] != slot and structure.fits(before, callee):
            guessed[place[before]] = [slot]
        last[kind, unnumbered(name)] = callee
    return guessed


def _repeats(structure: Structure, instances: Sequence[str]) -> tuple[Loop, ...]:
    """The loop over calls of one instance by one call of a caller."""
    spans = [
        structure.per_call[caller, path]
        for path in instances
        for caller in structure.callers.get(path, ())
        if (caller, path) in structure.per_call
    ]
    most = max((high for _, high in spans), default=1)
    return (Loop("parfor", most, min(low for low, _ in spans), same=True),) if most > 1 else ()


def _family(structure: Structure, index: int, instances: Sequence[str], loops: tuple[Loop, ...], depth: int) -> Family:
    counts = structure.graph.call_counts
    return Family(
        index=index,
        class_name=structure.graph.module_types.get(instances[0], "?"),
        pattern=pattern(instances),
        instances=tuple(instances),
        loops=loops,
        calls=sum(counts.get(p, 0) for p in instances),
        not_executed=tuple(p for p in instances if p not in counts),
        depth=depth,
    )


def _arrows(edges: Iterable[tuple[str, str, int]], home: Mapping[str, int]) -> tuple[Arrow, ...]:
    found: dict[tuple[int, int], int] = defaultdict(int)
    for a, b, count in edges:
        if a in home and b in home:
            found[home[a], home[b]] += count
    return tuple(Arrow(a, b, n) for (a, b), n in sorted(found.items()))
