"""Group the modules of a callgraph into families, with the loops that calls and data flow show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeVar

from costproof.compare.patterns import Mask
from costproof.ledger.callgraph import CallGraph
from costproof.reports.graph.picture import Edge, GraphView, Node
from costproof.reports.graph.structure import CallStructure, unnumbered
from costproof.views.module_tree import pattern


def group(graph: CallGraph) -> GraphView:
    """Group a callgraph into families; every module that ran is in exactly one, so sums over families are exact.

    Families are found caller by caller, outermost first; a module that several callers share belongs to the one
    nearest to the root.
    """
    structure = CallStructure(graph)
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
    structure: CallStructure, members: Sequence[str], home: Mapping[str, int]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Group the modules that a family calls into families; return each one's modules and its loop, if any."""
    inside = frozenset(members)
    slots: dict[Slot, dict[str, list[str]]] = defaultdict(dict)
    when: dict[Slot, int] = {}
    for member in members:
        for callee in structure.callees.get(member, ()):
            callers = structure.callers[callee]
            # Shared with other callers: modules are of one kind only if the same callers share them.
            kind = (structure.likeness.get(callee, callee), None if callers <= inside else tuple(sorted(callers)))
            name = callee[len(member) + 1 :] if callee.startswith(member + ".") else callee
            slots[name, kind].setdefault(member, []).append(callee)
            at = structure.order[callee] - structure.order[member]
            when[name, kind] = min(at, when.get((name, kind), at))
    siblings = []
    for slot, callees in slots.items():
        ran = any(c in structure.graph.call_counts for cs in callees.values() for c in cs)
        # Without data flow only numbers indicate that modules belong together.
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


def _slot_flow(structure: CallStructure, slots: Mapping[Slot, Mapping[str, Sequence[str]]]) -> dict[Slot, set[Slot]]:
    """Return the slots that each slot feeds, by data flow or, without it, by matching shapes in call order."""
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


def _repeats(structure: CallStructure, instances: Sequence[str]) -> tuple[str, ...]:
    """Return the loop of a module that one call of its caller calls repeatedly; empty if none is repeated."""
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


FamilyKind = Literal["one", "for", "parfor"]


Slot = tuple[str, Hashable]
"""Position of a callee within each member of a family: (name relative to the member, kind of module)."""


@dataclass(frozen=True)
class Sibling:
    """A module among those with one caller, at its position among them."""

    slot: Slot
    kind: Hashable
    """A key that is equal for modules that may share a family."""
    ran: bool

    @cached_property
    def mask(self) -> Mask:
        """Return the module's name with its numbers replaced."""
        return unnumbered(self.slot[0])

    @property
    def where(self) -> str:
        """Return the path of the enclosing module; only numbered modules of different ones may share a family."""
        return self.slot[0].rpartition(".")[0]


@dataclass(slots=True)
class Family:
    """Siblings that form one family, ordered by data flow or by calls."""

    kind: FamilyKind
    members: list[Sibling]


def split(siblings: Sequence[Sibling], flow: Mapping[Slot, Collection[Slot]]) -> list[Family]:
    """Split the modules that one caller calls into families, ordered by their first members.

    Args:
        siblings: in the order of their first call; those that never ran last.
        flow: slot -> slots that read what it made. Arrows against the order of calls (a module that is
            called again) are left out, so that what remains has no cycle.

    Rules, in this order:
        numbered siblings of one mask that all lie on one path are a ``for``; of the others, those on one level
        (longest path from the first) are a ``parfor``; siblings with names of their own are a ``parfor``
        if they are on one level, a ``for`` if each feeds the next directly. What never ran joins its likes.
    """
    place = {s.slot: i for i, s in enumerate(siblings)}
    ran = [s for s in siblings if s.ran]
    order = _FlowOrder({s.slot: [t for t in flow.get(s.slot, ()) if place.get(t, -1) > place[s.slot]] for s in ran})
    parts = [
        Family(kind if len(members) > 1 else "one", members)
        for alike in _grouped_by(ran, lambda s: s.kind).values()
        for kind, members in _repeated_families(alike, order)
    ]
    for idle in (s for s in siblings if not s.ran):
        likes = [p for p in parts if (p.members[0].kind, p.members[0].mask) == (idle.kind, idle.mask)]
        if not likes:
            parts.append(Family("one", [idle]))
            continue
        best = max(likes, key=lambda p: (p.kind == "parfor", len(p.members)))
        best.members.append(idle)
        if best.kind == "one":
            # One that ran and others that did not: there is no evidence that one would feed another.
            best.kind = "parfor"
    return sorted(parts, key=lambda p: min(place[s.slot] for s in p.members))


class _FlowOrder:
    """Reachability and levels of siblings in the data flow between them."""

    def __init__(self, forward: Mapping[Slot, Sequence[Slot]]) -> None:
        """Compute reachability and levels from each slot's readers; readers come after the slot in ``forward``."""
        self.forward = forward
        self.reach: dict[Slot, frozenset[Slot]] = {}
        for name in reversed(list(forward)):
            self.reach[name] = frozenset().union(*({t} | self.reach[t] for t in forward[name]))
        self.level = dict.fromkeys(forward, 0)
        """Length of the longest data flow path that ends at a slot."""
        for name, targets in forward.items():
            for target in targets:
                self.level[target] = max(self.level[target], self.level[name] + 1)

    def feeds(self, a: Sibling, b: Sibling) -> bool:
        return b.slot in self.reach[a.slot]

    def linked(self, a: Sibling, b: Sibling) -> bool:
        return self.feeds(a, b) or self.feeds(b, a)


_Found = Iterator[tuple[FamilyKind, list[Sibling]]]


def _repeated_families(alike: list[Sibling], order: _FlowOrder) -> _Found:
    """Yield families of siblings of one kind: first those with numbered names, then those with individual names."""
    lone: list[Sibling] = []
    for numbered in _grouped_by(alike, lambda s: s.mask).values():
        for members in _components(numbered, order):
            if not all(order.feeds(a, b) for a, b in pairwise(members)):
                yield from _by_level(members, order)
            elif len(members) > 1:
                yield "for", members
            else:
                lone += members
    for together in _grouped_by(lone, lambda s: s.where).values():
        yield from _named(together, order)


def _named(siblings: list[Sibling], order: _FlowOrder) -> _Found:
    """Yield families of one kind of siblings with individual names: first parallel siblings, then chains.

    Levels come first: a query, key and value projection are three of a kind, though each also feeds the like
    projection after the attention.
    """
    rest = siblings
    for first in siblings:
        level = order.level[first.slot]
        same = [s for s in rest if s is first or (order.level[s.slot] == level and not order.linked(first, s))]
        if first in rest and len(same) > 1:
            rest = [s for s in rest if s not in same]
            yield "parfor", same
    chain: list[Sibling] = []
    for sibling in rest:
        if chain and sibling.slot not in order.forward[chain[-1].slot]:
            yield "for", chain
            chain = []
        chain.append(sibling)
    if chain:
        yield "for", chain


def _by_level(members: list[Sibling], order: _FlowOrder) -> _Found:
    """Yield groups of siblings whose data flow branches: equal levels as ``parfor``, chains as ``for``."""
    run: list[Sibling] = []
    for _, same in sorted(_grouped_by(members, lambda s: order.level[s.slot]).items()):
        if run and (len(same) > 1 or not order.feeds(run[-1], same[0])):
            yield "for", run
            run = []
        if len(same) > 1:
            yield "parfor", same
        else:
            run = [*run, *same]
    if run:
        yield "for", run


def _components(members: list[Sibling], order: _FlowOrder) -> list[list[Sibling]]:
    """Return groups of members that are connected by data flow; all isolated members form one group."""
    joined: list[list[Sibling]] = []
    for sibling in members:
        linked = [c for c in joined if any(order.linked(sibling, m) for m in c)]
        joined = [c for c in joined if c not in linked] + [[m for c in linked for m in c] + [sibling]]
    alone = [m for c in joined if len(c) == 1 for m in c]
    found = [sorted(c, key=members.index) for c in joined if len(c) > 1]
    return [*found, alone] if alone else found


Key = TypeVar("Key", bound=Hashable)


def _grouped_by(siblings: Sequence[Sibling], key: Callable[[Sibling], Key]) -> dict[Key, list[Sibling]]:
    found: dict[Key, list[Sibling]] = defaultdict(list)
    for sibling in siblings:
        found[key(sibling)].append(sibling)
    return dict(found)
