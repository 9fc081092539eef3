"""Attribute a difference exactly to the keys that changed, in integers and independently of their order.

Let f(T) be the cost if the keys in T have their new values and all others their old ones. The *term* of a set S of
keys is the effect of all of them together that no proper subset has:

    m(S) = sum over T within S of (-1)^(|S| - |T|) f(T)        (inclusion-exclusion)

The terms of all sets but the empty one sum to f(all) - f(none), exactly. A key's *share* is its Shapley value: its
own term, and an even part of every joint term that contains it,

    share(k) = sum over S with k of m(S) / |S|

(Shapley 1953; Harsanyi 1959 for the terms, which he calls dividends). Shares are fractions, rounded by largest
remainder so that they sum to the same difference. Neither terms nor shares depend on an order of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import lcm
from typing import Final, Generic, TypeVar

from costproof.ledger.errors import BadInput, Problems

MOST_KEYS: Final = 12
"""Maximum number of keys attributed at once; more are grouped by section first, since 2^12 points take seconds.

The keys of each group are attributed afterwards. 2^20 points would take an hour.
"""

K = TypeVar("K", bound=Hashable)
Point = Callable[[frozenset[str]], Mapping[K, int | None]]
"""Function that returns all quantities when a given set of keys has the new values.

Raises ``BadInput`` if no valid model has these values.
"""


@dataclass(frozen=True, slots=True)
class Term:
    """Interaction effect of a set of changes, beyond the effects of its subsets."""

    keys: tuple[str, ...]
    """Names of the changes; a single name for the change's effect without the others."""
    amount: int


@dataclass(frozen=True, slots=True)
class Player:
    """A change to which a difference is attributed: one key, or several keys that can only change together."""

    name: str
    keys: tuple[str, ...]
    why: str = ""
    """Reason why the keys are not separated: the error of a model with only some of them changed."""


@dataclass(frozen=True, slots=True)
class Split:
    """The difference of one quantity, as a sum of interaction effects and as a sum of one share per change."""

    terms: tuple[Term, ...] = ()
    shares: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attribution(Generic[K]):
    """The differences of all quantities, each divided among the changes."""

    players: tuple[Player, ...]
    splits: dict[K, Split]
    """Divided differences by quantity; quantities that are unknown for some set of changes are left out."""


def attribute(keys: Sequence[str], point: Point[K], most: int = MOST_KEYS) -> Attribution[K]:
    """Attribute the difference that all changed keys make in every quantity to the single keys.

    Args:
        keys: the changed keys, in the order of reports; the part before the first dot is a key's section.
        most: keys that are split at once.

    Raises:
        BadInput: the model with no key changed, or with all of them, does not run.

    Returns:
        terms and shares, each of which adds up to the difference. With more than ``most`` keys, keys of different
        sections interact only as sections: the joint term of two sections is not split further, and a section's share
        of it has the section's name.
    """
    known: dict[frozenset[str], Mapping[K, int | None] | str] = {}

    def at(changed: frozenset[str]) -> Mapping[K, int | None] | str:
        if changed not in known:
            try:
                known[changed] = point(changed)
            except BadInput as error:
                known[changed] = (error.problems[0] if isinstance(error, Problems) else error).line
        return known[changed]

    if not keys:
        return Attribution((), {})
    known[frozenset()], known[frozenset(keys)] = point(frozenset()), point(frozenset(keys))
    return _attribute(tuple(keys), at, most)


_At = Callable[[frozenset[str]], "Mapping[K, int | None] | str"]


def _attribute(keys: tuple[str, ...], at: _At[K], most: int) -> Attribution[K]:
    if len(keys) <= most:
        players, values = _settled([Player(key, (key,)) for key in keys], at)
        return Attribution(players, _splits(players, values))
    groups, values = _settled(_grouped(keys, most), at)
    outer = _splits(groups, values)
    if len(groups) == 1:
        return Attribution(groups, outer)
    inner = [_attribute(group.keys, at, most) for group in groups]
    players = tuple(p for part in inner for p in part.players)
    splits = {}
    for quantity, split in outer.items():
        if any(quantity not in part.splits for part in inner):
            continue
        parts = [part.splits[quantity] for part in inner]
        joint = tuple(t for t in split.terms if len(t.keys) > 1)
        shares = {name: amount for part in parts for name, amount in part.shares.items()}
        for group, part in zip(groups, parts, strict=True):
            rest = split.shares.get(group.name, 0) - sum(part.shares.values())
            if rest:
                shares[group.name] = shares.get(group.name, 0) + rest  # a group of one key is that key
        splits[quantity] = Split((*(t for part in parts for t in part.terms), *joint), shares)
    return Attribution((*players, *(g for g in groups if g.name not in keys)), splits)


def _grouped(keys: tuple[str, ...], most: int) -> list[Player]:
    """Group the keys by section or, if there is only one section, by neighbourhood, into few joint changes."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        sections.setdefault(key.partition(".")[0] if "." in key else "", []).append(key)
    if 1 < len(sections) <= most:
        return [Player(_section_name(name, found), tuple(found)) for name, found in sections.items()]
    size = -(-len(keys) // most)
    runs = [keys[i : i + size] for i in range(0, len(keys), size)]
    return [Player(run[0] if len(run) == 1 else f"{run[0]} … {run[-1]}", run) for run in runs]


def _section_name(name: str, keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{name or 'model'}.*"


def _settled(players: list[Player], at: _At[K]) -> tuple[tuple[Player, ...], list[Mapping[K, int | None]]]:
    """Return changes whose every subset gives a valid model, and the quantities for every subset, by bit mask.

    The smallest rejected subset is merged into one player with the smallest valid set that contains it.
    """
    while True:
        refused = next(
            (s for n in range(len(players)) for s in combinations(players, n) if isinstance(at(_keys(s)), str)), None
        )
        if refused is None:
            found = [
                at(_keys([p for i, p in enumerate(players) if mask >> i & 1])) for mask in range(2 ** len(players))
            ]
            return tuple(players), [v for v in found if not isinstance(v, str)]
        why = at(_keys(refused))
        others = [p for p in players if p not in refused]
        legal = next(
            (
                (*refused, *more)
                for n in range(1, len(others) + 1)
                for more in combinations(others, n)
                if not isinstance(at(_keys((*refused, *more))), str)
            ),
            tuple(players),
        )
        first = min(players.index(p) for p in legal)
        merged = [p for p in players if p in legal]
        keys = tuple(k for p in merged for k in p.keys)
        one = Player(" + ".join(p.name for p in merged), keys, str(why))
        players = [*players[:first], one, *(p for p in players[first:] if p not in legal)]


def _keys(players: Sequence[Player]) -> frozenset[str]:
    return frozenset(k for p in players for k in p.keys)


def _splits(players: Sequence[Player], values: Sequence[Mapping[K, int | None]]) -> dict[K, Split]:
    names = [p.name for p in players]
    found = {}
    for quantity in dict.fromkeys((*values[-1], *values[0])):
        column = [v.get(quantity, 0) for v in values]
        known = [n for n in column if n is not None]
        if len(known) == len(column):
            found[quantity] = split(names, known)
    return found


def split(names: Sequence[str], values: Sequence[int]) -> Split:
    """Return the interaction effect of each set of changes, and the share (Shapley value) of each change.

    Args:
        names: names of the players.
        values: the quantity for every subset of the players, indexed by the bit mask of those that have changed.
    """
    terms = list(values)
    for i in range(len(names)):  # the differences along one player after another: k x 2^(k-1) subtractions
        bit = 1 << i
        for mask in range(len(terms)):
            if mask & bit:
                terms[mask] -= terms[mask ^ bit]
    sets = [(tuple(i for i in range(len(names)) if mask >> i & 1), m) for mask, m in enumerate(terms) if mask and m]
    sets.sort(key=lambda s: (len(s[0]), s[0]))
    whole = lcm(*range(1, len(names) + 1))
    parts = [0] * len(names)
    for members, amount in sets:
        for i in members:
            parts[i] += amount * (whole // len(members))
    rounded = largest_remainder(parts, whole)
    shares = {name: share for name, share in zip(names, rounded, strict=True) if share}
    return Split(tuple(Term(tuple(names[i] for i in members), m) for members, m in sets), shares)


def largest_remainder(parts: Sequence[int], whole: int) -> list[int]:
    """Round the fractions ``part / whole`` to integers and keep their sum, which is an integer.

    All are rounded down; the missing units go, one each, to those with the largest remainders, ties in order.
    """
    rounded = [p // whole for p in parts]
    missing = sum(parts) // whole - sum(rounded)
    for i in sorted(range(len(parts)), key=lambda i: (-(parts[i] % whole), i))[:missing]:
        rounded[i] += 1
    return rounded
