"""Siblings under one caller, split into families: chains (``for``), levels (``parfor``) and single modules.

Only data flow decides: a chain is a set of like modules of which each feeds the next, directly or through
others; a level is a set of like modules of which none feeds another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeVar

from costproof.compare.patterns import Mask
from costproof.reports.graph.structure import unnumbered

Kind = Literal["one", "for", "parfor"]


Slot = tuple[str, Hashable]
"""What the members of a family call alike: its name below the member, and its kind."""


@dataclass(frozen=True)
class Sibling:
    """One callee of a caller."""

    slot: Slot
    kind: Hashable
    """Equal for modules that may share a family."""
    ran: bool

    @cached_property
    def mask(self) -> Mask:
        """Its name without the numbers."""
        return unnumbered(self.slot[0])

    @property
    def where(self) -> str:
        """What holds it: modules held in different places share a family only if a number tells them apart."""
        return self.slot[0].rpartition(".")[0]


@dataclass(slots=True)
class Part:
    """Siblings that form one family, in the order in which they feed each other or are called."""

    kind: Kind
    members: list[Sibling]


def split(siblings: Sequence[Sibling], flow: Mapping[Slot, Collection[Slot]]) -> list[Part]:
    """Families of siblings, in the order of their first members.

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
    order = _Order({s.slot: [t for t in flow.get(s.slot, ()) if place.get(t, -1) > place[s.slot]] for s in ran})
    parts = [
        Part(kind if len(members) > 1 else "one", members)
        for alike in _by(ran, lambda s: s.kind).values()
        for kind, members in _repeated(alike, order)
    ]
    for idle in (s for s in siblings if not s.ran):
        likes = [p for p in parts if (p.members[0].kind, p.members[0].mask) == (idle.kind, idle.mask)]
        if not likes:
            parts.append(Part("one", [idle]))
            continue
        best = max(likes, key=lambda p: (p.kind == "parfor", len(p.members)))
        best.members.append(idle)
        if best.kind == "one":
            # One that ran and others that did not: nothing says that one would feed the other.
            best.kind = "parfor"
    return sorted(parts, key=lambda p: min(place[s.slot] for s in p.members))


class _Order:
    """What the flow says about siblings: which feeds which, directly or through others, and on which level."""

    def __init__(self, forward: Mapping[Slot, Sequence[Slot]]) -> None:
        """Take slot -> slots that read what it made, all of them later in the mapping."""
        self.forward = forward
        self.reach: dict[Slot, frozenset[Slot]] = {}
        for name in reversed(list(forward)):
            self.reach[name] = frozenset().union(*({t} | self.reach[t] for t in forward[name]))
        self.level = dict.fromkeys(forward, 0)
        """Length of the longest path to a slot."""
        for name, targets in forward.items():
            for target in targets:
                self.level[target] = max(self.level[target], self.level[name] + 1)

    def feeds(self, a: Sibling, b: Sibling) -> bool:
        return b.slot in self.reach[a.slot]

    def linked(self, a: Sibling, b: Sibling) -> bool:
        return self.feeds(a, b) or self.feeds(b, a)


_Found = Iterator[tuple[Kind, list[Sibling]]]


def _repeated(alike: list[Sibling], order: _Order) -> _Found:
    """Siblings of one kind: first those with a number, then all that are single of their name."""
    lone: list[Sibling] = []
    for numbered in _by(alike, lambda s: s.mask).values():
        for members in _components(numbered, order):
            if not all(order.feeds(a, b) for a, b in pairwise(members)):
                yield from _by_level(members, order)
            elif len(members) > 1:
                yield "for", members
            else:
                lone += members
    for together in _by(lone, lambda s: s.where).values():
        yield from _named(together, order)


def _named(siblings: list[Sibling], order: _Order) -> _Found:
    """Like siblings without a common number: those on one level, then chains of direct neighbours.

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


def _by_level(members: list[Sibling], order: _Order) -> _Found:
    """Members that branch: each level with several is a ``parfor``, chains of single ones are a ``for``."""
    run: list[Sibling] = []
    for _, same in sorted(_by(members, lambda s: order.level[s.slot]).items()):
        if run and (len(same) > 1 or not order.feeds(run[-1], same[0])):
            yield "for", run
            run = []
        if len(same) > 1:
            yield "parfor", same
        else:
            run = [*run, *same]
    if run:
        yield "for", run


def _components(members: list[Sibling], order: _Order) -> list[list[Sibling]]:
    """Members joined wherever one reaches another; those that reach none and are reached by none stay together."""
    joined: list[list[Sibling]] = []
    for sibling in members:
        linked = [c for c in joined if any(order.linked(sibling, m) for m in c)]
        joined = [c for c in joined if c not in linked] + [[m for c in linked for m in c] + [sibling]]
    alone = [m for c in joined if len(c) == 1 for m in c]
    found = [sorted(c, key=members.index) for c in joined if len(c) > 1]
    return [*found, alone] if alone else found


Key = TypeVar("Key", bound=Hashable)


def _by(siblings: Sequence[Sibling], key: Callable[[Sibling], Key]) -> dict[Key, list[Sibling]]:
    found: dict[Key, list[Sibling]] = defaultdict(list)
    for sibling in siblings:
        found[key(sibling)].append(sibling)
    return dict(found)
