"""Search for the smallest sets of causes that lead from the truth to a claim, in exact arithmetic.

All values are integers on a common denominator, which is fast enough to try hundreds of thousands of sets. A set fits
if its number would be printed as claimed. A set may also fit by coincidence: :mod:`costproof.claims.coincidence`
estimates how many do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import comb, floor, lcm, prod
from typing import Final

from costproof.claims.coincidence import Chance, KnownNumbers, ReferenceClass
from costproof.claims.effects import Effect
from costproof.claims.terms import ClaimTerm
from costproof.claims.types import Amount
from costproof.ledger.time_limits import check_time

MOST_CAUSES: Final = 4
MOST_TRIED: Final = 400_000
"""The most sets of causes to try; larger sets are not tried if the total would exceed it."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    sets: tuple[tuple[Effect, ...], ...]
    """All fitting sets of the smallest size; the empty set if the truth itself fits."""
    tried: int
    """Number of sets tried."""
    chance: Chance
    """Expected coincidental fits among the sets up to this size."""


class Reachable:
    """The numbers that all sets of causes lead to, computed once per size and independent of the claimed number.

    Args:
        terms: the terms of the claim.
        effects: the effects that can change it.
        given: the effects that the claim states itself; they are part of every set.
    """

    def __init__(self, terms: Sequence[ClaimTerm], effects: Sequence[Effect], given: Iterable[Effect] = ()) -> None:
        stated = tuple(given)
        families = {e.family for e in stated}
        # Causes that switch terms on come first: a factor on a term that is off has no effect yet.
        # Causes that require or exclude others come after them.
        free = sorted(
            (e for e in effects if e.family not in families),
            key=lambda e: (not e.switches, bool(e.requires or e.excludes)),
        )
        self.table = table = _Table(terms, [*stated, *free])
        self.stated = tuple(range(len(stated)))
        self.state = table.start
        for index in self.stated:
            self.state = table.apply(self.state, index)
        counted = [i for i in range(table.count) if self.state[table.count + i]]
        self.start = sum(self.state[i] for i in counted)
        self.indices = range(len(stated), len(table.effects))
        parts = [Fraction(self.state[i], table.scale) for i in counted if self.state[i]]
        self.reference = ReferenceClass(parts, (v for i in counted for v in terms[i].values.values()))
        self._of: dict[int, tuple[list[int], list[tuple[int, ...]], list[int]]] = {}
        self._numbers: dict[int, KnownNumbers] = {}

    def numbers(self, size: int) -> KnownNumbers:
        """Return the values of the claim that sets of ``size`` causes lead to, memoized."""
        if size not in self._numbers:
            self._numbers[size] = KnownNumbers(self.reference, self.of(size)[0], self.table.scale)
        return self._numbers[size]

    def of(self, size: int) -> tuple[list[int], list[tuple[int, ...]], list[int]]:
        """Return, for all sets of a size: their sorted numbers, the sets as tried, and the set's index per number."""
        if size not in self._of:
            found = list(_sets(self.table, self.state, self.start, self.indices, size, self.stated))
            order = sorted(range(len(found)), key=lambda i: found[i][1])
            self._of[size] = [found[i][1] for i in order], [chosen for chosen, _ in found], order
        return self._of[size]


def search(among: Reachable, amount: Amount, most: int = MOST_CAUSES) -> Found:
    """Search for the sets of causes that fit a claim, in ascending order of size.

    Args:
        amount: the claim as an interval of integers.
        most: causes in a set.
    """
    table = among.table
    scale = table.scale
    # A fraction that a rule leaves is truncated when the count is printed.
    lowest, highest = amount.low * scale, amount.high * scale + scale - 1
    if lowest <= among.start <= highest:
        return Found(((),), 1, Chance())
    tried, chance = 1, Chance()
    for size in range(1, most + 1):
        if comb(len(among.indices), size) > MOST_TRIED - tried:
            break
        values, sets, order = among.of(size)
        hits = [sets[i] for i in sorted(order[bisect_left(values, lowest) : bisect_right(values, highest)])]
        tried += len(values)
        chance += among.numbers(size).chance(amount)
        if hits:
            named = (tuple(table.effects[i] for i in h[len(among.stated) :]) for h in hits)
            return Found(tuple(named), tried, chance)
    return Found((), tried, chance)


def _sets(
    table: _Table, state: list[int], total: int, indices: range, size: int, chosen: tuple[int, ...]
) -> Iterable[tuple[tuple[int, ...], int]]:
    """Yield all sets of ``size`` further causes in which each changes the number, with the resulting number."""
    check_time()
    bits = sum(1 << i for i in chosen)
    for index in indices:
        required = table.required[index]
        if bits & table.barred[index] or (required and not bits & required):
            continue
        delta = table.delta(state, index)
        if delta == 0:
            continue
        longer = (*chosen, index)
        if size == 1:
            yield longer, total + delta
            continue
        rest = range(index + 1, indices.stop)
        yield from _sets(table, table.apply(state, index), total + delta, rest, size - 1, longer)


class _Table:
    """ClaimTerms and causes as integers: term i holds ``value * scale``."""

    def __init__(self, terms: Sequence[ClaimTerm], effects: Sequence[Effect]) -> None:
        self.effects = list(effects)
        common = lcm(*(f.denominator for e in effects for f in e.factors.values()), 1)
        # Each cause of a set divides by its denominator once.
        stated = 1 + MOST_CAUSES + 3
        self.scale = common**stated * lcm(*(i.value.denominator for i in terms), 1)
        self.start = [*(int(i.value * self.scale) for i in terms), *(int(i.counted) for i in terms)]
        """Scaled values of all terms, followed by 1 for each term that is counted or 0 for one that is not."""
        self.count = len(terms)
        self.factors = [[(i, f.numerator, f.denominator) for i, f in e.factors.items()] for e in effects]
        self.switches = [tuple(e.switches) for e in effects]
        causes = [(1 << i, e) for i, e in enumerate(effects)]
        self.barred = [
            sum(bit for bit, o in causes if o.family == e.family or o.cause in e.excludes) for _, e in causes
        ]
        """Bits of the causes that rule out each cause once they are chosen."""
        nothing = 1 << len(effects)
        self.required = [
            sum(bit for bit, o in causes if o.cause == e.requires) or nothing if e.requires else 0 for _, e in causes
        ]
        """Bits of the causes of which each cause requires one, 0 where it requires none."""

    def apply(self, state: list[int], index: int) -> list[int]:
        """Return the state of the terms after a cause is applied."""
        after = list(state)
        for i in self.switches[index]:
            after[self.count + i] = 1
        for i, up, down in self.factors[index]:
            after[i] = after[i] * up // down
        return after

    def delta(self, state: list[int], index: int) -> int:
        """Return the amount that a cause adds to the total."""
        added = 0
        for i in self.switches[index]:
            if not state[self.count + i]:
                added += state[i]
        for i, up, down in self.factors[index]:
            if state[self.count + i] or i in self.switches[index]:
                added += state[i] * up // down - state[i]
        return added


def walk(terms: Sequence[ClaimTerm], chosen: Sequence[Effect]) -> tuple[tuple[int, ...], int]:
    """Return the integer amount that each cause adds when applied in sequence, and the final number."""
    reached = [floor(reach(terms, chosen[:size])) for size in range(len(chosen) + 1)]
    return tuple(after - before for before, after in pairwise(reached)), reached[-1]


def reach(terms: Sequence[ClaimTerm], chosen: Sequence[Effect]) -> Fraction:
    """Return the number that a set of causes leads to."""
    on = {i for i, term in enumerate(terms) if term.counted}.union(*(e.switches for e in chosen))
    return sum((terms[i].value * prod(e.factors.get(i, 1) for e in chosen) for i in on), Fraction(0))
