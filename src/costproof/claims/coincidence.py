"""Estimate how many known numbers fit a claim by coincidence (docs/claims.md, "Evidence and coincidence")."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm, log, prod
from typing import Final

from costproof.claims.types import Amount

_PARTS: Final = (20, 80, 320)
"""The density of known numbers is measured within 1/20, 1/80 and 1/320 of the claim; the highest density is used."""
_ROOM: Final = 8
"""The two narrower intervals are used only if they are this many times as wide as the claim's own interval."""
_FAR: Final = 4
"""Products of sizes are sparse, so their density is measured from a quarter of the claim to four times the claim."""
_FINE: Final = 10**5
_ONE: Final = 10**18


@dataclass(frozen=True, slots=True)
class Chance:
    """Expected numbers of coincidental fits of a claim, for two sets of numbers that it may come from."""

    numbers: Fraction = Fraction(0)
    """Fits among all numbers with as many digits as the claim, or among multiples of the greatest common divisor of
    the truth's terms, whichever are more."""
    products: Fraction = Fraction(0)
    """Fits among products of sizes of the model and the run; 0 for a claim that is not a product of sizes."""

    def __add__(self, other: Chance) -> Chance:
        return Chance(self.numbers + other.numbers, self.products + other.products)

    @property
    def both(self) -> Fraction:
        """Return the sum of the expected fits, an upper bound for either set of numbers."""
        return self.numbers + self.products


def fine(amount: Amount) -> bool:
    """Return whether a claim is exact, or printed with at least six digits."""
    return (amount.high - amount.low) * _FINE <= amount.low


class SizeProducts:
    """Products of sizes drawn at random with replacement, each size with the same probability."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self._primes = prod(sizes)
        self._passed = {1: _ONE}
        # Renewal theory: on a logarithmic scale, the random walk of products visits an interval about (length of the
        # interval) / (mean step) times. Only this number needs logarithms.
        mean = sum(map(log, sizes)) / len(sizes)
        self.passing = Fraction(2 * log(_FAR) / mean).limit_denominator(1_000_000)
        """Expected number of products from a quarter of a claim to four times the claim."""

    def weight(self, number: int) -> Fraction:
        """Return the probability that the running product equals a number; 0 if it is not a product of sizes."""
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
    """The sets of numbers that a claim may come from: multiples of the truth's grain, and products of sizes.

    Args:
        parts: values of the terms of the truth.
        sizes: sizes of the model and the run.
    """

    def __init__(self, parts: Sequence[Fraction], sizes: Iterable[int]) -> None:
        common = lcm(*(v.denominator for v in parts))
        self.grain = Fraction(gcd(*(int(v * common) for v in parts)), common)
        """The greatest common divisor of all terms of the truth."""
        self.products = _products(tuple(sorted({2, *(s for s in sizes if s > 1)})))

    def has_product(self, amount: Amount) -> bool:
        """Return whether a claim is a product of sizes; false for one with few digits, which fits too many numbers."""
        return fine(amount) and (amount.low < amount.high or self.products.weight(amount.low) > 0)


class KnownNumbers:
    """The numbers that known mistakes lead to.

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
        return Chance(self.among_all(amount), self.among_products(amount))

    def among_all(self, amount: Amount, *, itself: bool = False) -> Fraction:
        """Return the expected fits among numbers with as many digits, or multiples of the grain, whichever is more.

        Args:
            amount: the claim.
            itself: whether numbers that fit the claim count toward the density around the claim.
        """
        width = Fraction(amount.high + 1 - amount.low)
        rooms = [(Fraction(amount.low * (p - 1), p), Fraction(amount.high * (p + 1), p)) for p in _PARTS]
        rooms = [rooms[0], *(r for r in rooms[1:] if r[1] - r[0] > _ROOM * width)]
        # If no number is near, assume half a number.
        least = Fraction(min(len(self.values), 1), 2)
        own = 0 if itself else len(self._between(Fraction(amount.low), Fraction(amount.high)))
        taken = [max(Fraction(len(self._between(*r)) - own), least if r == rooms[0] else Fraction(0)) for r in rooms]
        most = max(t * width / max(r[1] - r[0], width) for t, r in zip(taken, rooms, strict=True))
        grain = self.reference.grain
        if not fine(amount) or grain <= width or amount.low > amount.high // grain * grain:
            return most
        reach = max(Fraction(amount.low, _PARTS[0]), _ROOM // 2 * grain)
        low, high = max(amount.low - reach, Fraction(0)), amount.high + reach
        step = int(grain * self.scale)
        multiples = sum(1 for v in self._between(low, high) if not v % step)
        return max(most, max(Fraction(multiples - min(own, multiples)), least) * grain / (high - low))

    def among_products(self, amount: Amount) -> Fraction:
        """Return the expected fits among products of sizes; 0 if the claim cannot be one."""
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
        """Return the known numbers whose integer part is in a range."""
        first, last = low * self.scale, (high + 1) * self.scale
        return self.values[bisect_left(self.values, first) : bisect_left(self.values, last)]
