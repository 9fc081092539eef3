"""Siblings under one caller, split into families: chains (``for``), levels (``parfor``) and single modules.

Only data flow decides: a chain is a set of like modules of which each feeds the next, directly or through
others; a level is a set of like modules of which none feeds another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Kind = Literal["one", "for", "parfor"]


@dataclass(frozen=True, slots=True)
class Sibling:
    """One callee of a caller."""

    name: str
    """Any name that no other sibling has."""
    where: str
    """Path of what holds it: modules held in different places share a family only if a number tells them apart."""
    mask: str
    """Its path without the numbers."""
    kind: Hashable
    """Equal for modules that may share a family."""
    ran: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Siblings that form one family, in the order in which they feed each other or are called."""

    kind: Kind
    names: tuple[str, ...]


def split(siblings: Sequence[Sibling], flow: Mapping[str, Sequence[str]]) -> list[Part]:
    """Families of siblings, in the order of their first members.

    Args:
        siblings: in the order of their first call; those that never ran last.
        flow: name -> names that read what it made. Arrows against the order of calls (a module that is
            called again) are left out, so that what remains has no cycle.

    Rules, in this order:
        numbered siblings of one mask that all lie on one path are a ``for``; of the others, those on one level
        (longest path from the first) are a ``parfor``; siblings with names of their own are a ``parfor``
        if they are on one level, a ``for`` if each feeds the next directly. What never ran joins its likes.
    """
    place = {s.name: i for i, s in enumerate(siblings)}
    forward = {
        s.name: [t for t in flow.get(s.name, ()) if t in place and place[t] > place[s.name]] for s in siblings if s.ran
    }
    reach, level = _closure(forward, [s.name for s in siblings if s.ran])
    parts: list[list[Sibling]] = []
    kinds: list[Kind] = []

    def add(kind: Kind, members: list[Sibling]) -> None:
        kinds.append(kind if len(members) > 1 else "one")
        parts.append(members)

    for alike in _by(siblings, lambda s: s.kind).values():
        lone: list[Sibling] = []
        for numbered in _by([s for s in alike if s.ran], lambda s: s.mask).values():
            if len(numbered) == 1:
                lone += numbered
                continue
            for chain in _components(numbered, reach):
                if _is_chain(chain, reach):
                    if len(chain) > 1:
                        add("for", chain)
                    else:
                        lone += chain
                else:
                    _by_level(chain, reach, level, add)
        for together in _by(lone, lambda s: s.where).values():
            _named(together, forward, reach, level, add)
    for idle in (s for s in siblings if not s.ran):
        home = [i for i, p in enumerate(parts) if p[0].kind == idle.kind and p[0].mask == idle.mask]
        best = max(home, key=lambda i: (kinds[i] == "parfor", len(parts[i]), -i), default=None)
        if best is None:
            add("one", [idle])
        else:
            parts[best].append(idle)
            # One that ran and others that did not: nothing says that one would feed the other.
            kinds[best] = "parfor" if kinds[best] == "one" else kinds[best]
    found = [Part(kind, tuple(s.name for s in members)) for kind, members in zip(kinds, parts, strict=True)]
    return sorted(found, key=lambda p: min(place[n] for n in p.names))


def _named(
    siblings: list[Sibling],
    forward: Mapping[str, Sequence[str]],
    reach: Mapping[str, frozenset[str]],
    level: Mapping[str, int],
    add: Callable[[Kind, list[Sibling]], None],
) -> None:
    """Like siblings without a common number: those on one level, then chains of direct neighbours.

    Levels come first: a query, key and value projection are three of a kind, though each also feeds the like
    projection after the attention.
    """
    taken: set[str] = set()
    for first in siblings:
        if first.name in taken:
            continue
        same = [s for s in siblings if s.name not in taken and (s is first or _level_mates(first, s, reach, level))]
        if len(same) > 1:
            taken.update(s.name for s in same)
            add("parfor", same)
    chain: list[Sibling] = []
    for sibling in (s for s in siblings if s.name not in taken):
        if chain and sibling.name not in forward[chain[-1].name]:
            add("for", chain)
            chain = []
        chain.append(sibling)
    if chain:
        add("for", chain)


def _level_mates(a: Sibling, b: Sibling, reach: Mapping[str, frozenset[str]], level: Mapping[str, int]) -> bool:
    return level[a.name] == level[b.name] and b.name not in reach[a.name] and a.name not in reach[b.name]


def _by_level(
    members: list[Sibling],
    reach: Mapping[str, frozenset[str]],
    level: Mapping[str, int],
    add: Callable[[Kind, list[Sibling]], None],
) -> None:
    """Members that branch: each level with several is a ``parfor``, chains of single ones are a ``for``."""
    run: list[Sibling] = []
    levels: dict[int, list[Sibling]] = defaultdict(list)
    for sibling in members:
        levels[level[sibling.name]].append(sibling)
    for _, same in sorted(levels.items()):
        if run and (len(same) > 1 or same[0].name not in reach[run[-1].name]):
            add("for", run)
            run = []
        if len(same) > 1:
            add("parfor", same)
        else:
            run += same
    if run:
        add("for", run)


def _closure(
    forward: Mapping[str, Sequence[str]], names: list[str]
) -> tuple[dict[str, frozenset[str]], dict[str, int]]:
    """What each name reaches, and the length of the longest path to it."""
    reach: dict[str, frozenset[str]] = {}
    for name in reversed(names):
        reach[name] = frozenset().union(*({t} | reach[t] for t in forward[name]))
    level = dict.fromkeys(names, 0)
    for name in names:
        for target in forward[name]:
            level[target] = max(level[target], level[name] + 1)
    return reach, level


def _components(members: list[Sibling], reach: Mapping[str, frozenset[str]]) -> list[list[Sibling]]:
    """Members joined wherever one reaches another; those that reach none and are reached by none stay together."""
    joined: list[list[Sibling]] = []
    for sibling in members:
        linked = [c for c in joined if any(sibling.name in reach[m.name] or m.name in reach[sibling.name] for m in c)]
        merged = [m for c in linked for m in c] + [sibling]
        joined = [c for c in joined if c not in linked] + [merged]
    alone = [m for c in joined if len(c) == 1 for m in c]
    found = [sorted(c, key=members.index) for c in joined if len(c) > 1]
    return [*found, alone] if alone else found


def _is_chain(members: list[Sibling], reach: Mapping[str, frozenset[str]]) -> bool:
    return all(b.name in reach[a.name] for a, b in pairwise(members))


def _by(siblings: Sequence[Sibling], key: Callable[[Sibling], Hashable]) -> dict[Hashable, list[Sibling]]:
    found: dict[Hashable, list[Sibling]] = defaultdict(list)
    for sibling in siblings:
        found[key(sibling)].append(sibling)
    return dict(found)
