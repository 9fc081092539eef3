"""Search for the smallest sets of mistakes that turn the true number into the claimed one, in exact arithmetic."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import comb, floor, gcd, lcm, log, prod
from typing import Final

from costproof.claims.effects import Effect
from costproof.claims.terms import ClaimTerm
from costproof.claims.types import Amount
from costproof.ledger.time_limits import check_time

_PARTS: Final = (20, 80, 320)
"""Reciprocal widths of the intervals around a claim in which the density of known numbers is measured.

Of the densities within 1/20, 1/80 and 1/320 of the claim, the highest is used.
"""
_ROOM: Final = 8
"""Minimum ratio of the width of a narrower interval to that of the interval that a claim stands for."""
_FAR: Final = 4
"""Factor below and above a claim within which the density of products of sizes is measured, as they are sparse."""
_FINE: Final = 10**5
_SIMPLE: Final = 12
"""Largest denominator of simple ratios; the true number times such a ratio is a multiple of grain / denominator."""
_ONE: Final = 10**18


@dataclass(frozen=True, slots=True)
class Chance:
    """Expected numbers of coincidental fits of a claim, under models of wrong numbers."""

    numbers: Fraction = Fraction(0)
    """Fits among numbers with as many digits, or among multiples of the truth's grain, whichever are more.

    The grain is the greatest common divisor of the truth's terms.
    """
    products: Fraction = Fraction(0)
    """Fits among products of sizes of the model and the run; 0 for a claim that is not such a product."""
    multiples: Fraction = Fraction(0)
    """Fits among multiples of the grain, the greatest common divisor of the truth's terms; 0 for other claims."""

    def __add__(self, other: Chance) -> Chance:
        return Chance(self.numbers + other.numbers, self.products + other.products, self.multiples + other.multiples)

    @property
    def both(self) -> Fraction:
        """Return the sum of both expectations, an upper bound."""
        return self.numbers + self.products


def fine(amount: Amount) -> bool:
    """Return whether a claim is an exact number or printed with at least six digits."""
    return (amount.high - amount.low) * _FINE <= amount.low


class SizeProducts:
    """Probability distribution of products of sizes drawn at random."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self._primes = prod(sizes)
        self._passed = {1: _ONE}
        # Renewal theory: on a logarithmic scale, the random walk of products visits an interval about (length of the
        # interval) / (mean step) times. Only this number needs logarithms.
        mean = sum(map(log, sizes)) / len(sizes)
        self.passing = Fraction(2 * log(_FAR) / mean).limit_denominator(1_000_000)
        """Expected number of products of sizes from a quarter of a claim to four times the claim."""

    def weight(self, number: int) -> Fraction:
        """Return the probability that a number occurs as a product while random sizes are multiplied one by one."""
        # A number with another prime factor is not a product of sizes: a fast test that rejects nearly all numbers.
        if number < 1 or pow(self._primes, number.bit_length(), number):
            return Fraction(0)
        return Fraction(self._pass(number), _ONE)

    def _pass(self, number: int) -> int:
        known = self._passed.get(number)
        if known is None:
            before = (number // s for s in self.sizes if not number % s)
            known = self._passed[number] = sum(map(self._pass, before)) // len(self.sizes)
        return known


@lru_cache(maxsize=8)
def _products(sizes: tuple[int, ...]) -> SizeProducts:
    return SizeProducts(sizes)


class ReferenceClass:
    """Two models of wrong numbers: multiples of the terms' greatest common divisor, and products of sizes.

    Args:
        parts: values of the terms of the truth.
        sizes: sizes of the model and the run.
    """

    def __init__(self, parts: Sequence[Fraction], sizes: Iterable[int]) -> None:
        common = lcm(*(v.denominator for v in parts))
        self.grain = Fraction(gcd(*(int(v * common) for v in parts)), common)
        """Greatest common divisor of all terms of the true number."""
        self.products = _products(tuple(sorted({2, *(s for s in sizes if s > 1)})))

    def lattice(self, amount: Amount, parts: int = 1) -> Fraction | None:
        """Return the first of grain / 1, …, grain / ``parts`` with a multiple in a precise claim; else ``None``."""
        width = amount.high + 1 - amount.low
        grains = (self.grain / part for part in range(1, parts + 1)) if fine(amount) else ()
        return next((g for g in grains if g > width and amount.low <= amount.high // g * g), None)

    def has_product(self, amount: Amount) -> bool:
        """Return whether a precise claim is a product of sizes; false for a claim with few digits."""
        return fine(amount) and (amount.low < amount.high or self.products.weight(amount.low) > 0)


class KnownNumbers:
    """All numbers to which known mistakes lead, for estimating coincidental fits.

    Args:
        reference: the sets of numbers that a claim may be drawn from.
        values: the numbers, each multiplied by ``scale``.
        scale: common denominator that makes all values integers.
    """

    def __init__(self, reference: ReferenceClass, values: Iterable[int], scale: int) -> None:
        self.reference, self.scale = reference, scale
        self.values = sorted(set(values))
        self._whole: tuple[list[int], list[Fraction]] | None = None

    def chance(self, amount: Amount) -> Chance:
        """Return how many of these numbers are expected to fit a claim by coincidence."""
        multiples = self.among_multiples(amount)
        return Chance(max(self._among_close(amount), multiples), self.among_products(amount), multiples)

    def among_all(self, amount: Amount, *, itself: bool = False) -> Fraction:
        """Return the expected coincidental fits among equally long numbers or multiples of the grain, if more of these.

        Args:
            amount: the claim.
            itself: whether numbers that fit the claim count toward the density around the claim.
        """
        return max(self._among_close(amount, itself=itself), self.among_multiples(amount, itself=itself))

    def _among_close(self, amount: Amount, *, itself: bool = False) -> Fraction:
        """Return the expected coincidental fits among numbers with as many digits as the claim."""
        width = Fraction(amount.high + 1 - amount.low)
        rooms = [(Fraction(amount.low * (p - 1), p), Fraction(amount.high * (p + 1), p)) for p in _PARTS]
        rooms = [rooms[0], *(r for r in rooms[1:] if r[1] - r[0] > _ROOM * width)]
        own = 0 if itself else self._own(amount)
        taken = [max(Fraction(len(self._between(*r)) - own), self._least if r == rooms[0] else Fraction(0))
                 for r in rooms]  # fmt: skip
        return max(t * width / max(r[1] - r[0], width) for t, r in zip(taken, rooms, strict=True))

    def among_multiples(self, amount: Amount, *, itself: bool = False) -> Fraction:
        """Return the expected coincidental fits among multiples of the grain that divides the claim; 0 if none does."""
        lattice = self.reference.lattice(amount, _SIMPLE if itself else 1)
        if lattice is None:
            return Fraction(0)
        reach = max(Fraction(amount.low, _PARTS[0]), _ROOM // 2 * lattice)
        low, high = max(amount.low - reach, Fraction(0)), amount.high + reach
        step = lattice * self.scale
        multiples = sum(1 for v in self._between(low, high) if not v * step.denominator % step.numerator)
        own = 0 if itself else min(self._own(amount), multiples)
        return max(Fraction(multiples - own), self._least) * lattice / (high - low)

    def _own(self, amount: Amount) -> int:
        """Return how many of the known numbers fit a claim."""
        return len(self._between(Fraction(amount.low), Fraction(amount.high)))

    @property
    def _least(self) -> Fraction:
        """Return the count to assume where no known number is near: a half, or 0 if none is known at all."""
        return Fraction(min(len(self.values), 1), 2)

    def among_products(self, amount: Amount) -> Fraction:
        """Return the expected coincidental fits among products of sizes; 0 if the claim cannot be such a product."""
        if not self.reference.has_product(amount):
            return Fraction(0)
        if self._whole is None:
            whole = [(v // self.scale, v % self.scale) for v in self.values]
            found = [(v, w) for v, rest in whole if not rest and (w := self.reference.products.weight(v))]
            self._whole = [v for v, _ in found], [w for _, w in found]
        numbers, weights = self._whole
        near = slice(bisect_left(numbers, amount.low // _FAR), bisect_right(numbers, amount.high * _FAR))
        return sum(weights[near], Fraction(0)) / self.reference.products.passing

    def _between(self, low: Fraction, high: Fraction) -> list[int]:
        """Return the known numbers in an interval."""
        first, last = low * self.scale, (high + 1) * self.scale
        return self.values[bisect_left(self.values, first) : bisect_left(self.values, last)]


MOST_CAUSES: Final = 4
MOST_TRIED: Final = 400_000
"""Maximum number of sets of causes tried; larger sets are left out if the total would exceed it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Fitting sets of mistakes found by a search, and the extent of the search."""

    sets: tuple[tuple[Effect, ...], ...]
    """All fitting sets of the smallest size; contains only the empty set if the true number fits."""
    tried: int
    """Number of sets tried."""
    chance: Chance
    """Expected number of coincidental fits among the sets up to this size."""


class Reachable:
    """Numbers that result from all sets of mistakes of a size, computed once for all claims on a quantity.

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
        """Return the numbers that result from sets of ``size`` mistakes, memoized."""
        if size not in self._numbers:
            self._numbers[size] = KnownNumbers(self.reference, self.of(size)[0], self.table.scale)
        return self._numbers[size]

    def of(self, size: int) -> tuple[list[int], list[tuple[int, ...]], list[int]]:
        """Return, for sets of one size, the sorted numbers, the sets in search order, and the set of each number."""
        if size not in self._of:
            found = list(_sets(self.table, self.state, self.start, self.indices, size, self.stated))
            order = sorted(range(len(found)), key=lambda i: found[i][1])
            self._of[size] = [found[i][1] for i in order], [chosen for chosen, _ in found], order
        return self._of[size]


def search(among: Reachable, amount: Amount, most: int = MOST_CAUSES) -> Found:
    """Return the smallest sets of mistakes that turn the true number into a claim.

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
    """Yield (set, number) for all sets with ``size`` more mistakes, each of which changes the number."""
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
    """Terms and mistakes in integer arithmetic, with all values multiplied by ``scale``."""

    def __init__(self, terms: Sequence[ClaimTerm], effects: Sequence[Effect]) -> None:
        self.effects = list(effects)
        common = lcm(*(f.denominator for e in effects for f in e.factors.values()), 1)
        # Each cause of a set divides by its denominator once.
        stated = 1 + MOST_CAUSES + 3
        self.scale = common**stated * lcm(*(i.value.denominator for i in terms), 1)
        self.start = [*(int(i.value * self.scale) for i in terms), *(int(i.counted) for i in terms)]
        """Scaled values of all terms, followed for each term by 1 if it is counted or 0 if not."""
        self.count = len(terms)
        self.factors = [[(i, f.numerator, f.denominator) for i, f in e.factors.items()] for e in effects]
        self.switches = [tuple(e.switches) for e in effects]
        causes = [(1 << i, e) for i, e in enumerate(effects)]
        self.barred = [
            sum(bit for bit, o in causes if o.family == e.family or o.cause in e.excludes) for _, e in causes
        ]
        """Bit masks of the causes that exclude a cause, by index of the cause."""
        nothing = 1 << len(effects)
        self.required = [
            sum(bit for bit, o in causes if o.cause == e.requires) or nothing if e.requires else 0 for _, e in causes
        ]
        """Bit masks of the causes of which a cause requires one, by index of the cause; 0 without a requirement."""

    def apply(self, state: list[int], index: int) -> list[int]:
        """Return the values of the terms after a mistake is applied."""
        after = list(state)
        for i in self.switches[index]:
            after[self.count + i] = 1
        for i, up, down in self.factors[index]:
            after[i] = after[i] * up // down
        return after

    def delta(self, state: list[int], index: int) -> int:
        """Return the amount by which a mistake changes the total."""
        added = 0
        for i in self.switches[index]:
            if not state[self.count + i]:
                added += state[i]
        for i, up, down in self.factors[index]:
            if state[self.count + i] or i in self.switches[index]:
                added += state[i] * up // down - state[i]
        return added


def walk(terms: Sequence[ClaimTerm], chosen: Sequence[Effect]) -> tuple[tuple[int, ...], int]:
    """Return the amounts that mistakes add when they are applied in order, and the resulting number."""
    reached = [floor(reach(terms, chosen[:size])) for size in range(len(chosen) + 1)]
    return tuple(after - before for before, after in pairwise(reached)), reached[-1]


def reach(terms: Sequence[ClaimTerm], chosen: Sequence[Effect]) -> Fraction:
    """Return the number that a cost model with these mistakes gives, as the sum of the changed terms."""
    on = {i for i, term in enumerate(terms) if term.counted}.union(*(e.switches for e in chosen))
    return sum((terms[i].value * prod(e.factors.get(i, 1) for e in chosen) for i in on), Fraction(0))
