"""How often chance gives a number that a known mistake gives too, among the numbers that people's formulas reach.

Wrong numbers are not integers at random. A claim is therefore taken as one of a crowd: of all numbers of as many
digits; of the multiples of what all parts of the truth are multiples of, if it is one of those; of the products of
the sizes of model and run, if it is one of those. The chance is the part of the crowd near the claim that is hit.
"""

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
"""Numbers within such a part of the claim say how densely they lie there; the densest counts."""
_ROOM: Final = 8
"""The smaller parts count if they hold so many numbers of as many digits."""
_FAR: Final = 4
"""Products of sizes are few: those from a fourth of the claim to four times it are counted."""
_FINE: Final = 10**5
_ONE: Final = 10**18


@dataclass(frozen=True, slots=True)
class Chance:
    """Known numbers that would be expected to fit by chance."""

    crowd: Fraction = Fraction(0)
    """Among numbers of as many digits, or multiples of the grain, where that is more."""
    products: Fraction = Fraction(0)
    """Among products of sizes; 0 for a number that is none."""

    def __add__(self, other: Chance) -> Chance:
        return Chance(self.crowd + other.crowd, self.products + other.products)

    @property
    def both(self) -> Fraction:
        """An upper bound, whatever crowd the claim is one of."""
        return self.crowd + self.products


def fine(amount: Amount) -> bool:
    """Whether a claim is exact, or printed with so many digits that it is as good as exact."""
    return (amount.high - amount.low) * _FINE <= amount.low


class Products:
    """Products of sizes taken at random, one after the other, each as likely as the others."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self._primes = prod(sizes)
        self._passed = {1: _ONE}
        # Products of random factors pass every stretch alike, once for each mean factor (renewal theory). The only
        # logarithms here: how wide the stretch is beside that.
        mean = sum(map(log, sizes)) / len(sizes)
        self.passing = Fraction(2 * log(_FAR) / mean).limit_denominator(1_000_000)
        """How many products are expected in the stretch around a claim."""

    def weight(self, number: int) -> Fraction:
        """How probable it is that they pass a number; 0 if it is not a product of sizes."""
        # A number of other primes than theirs is none: the quick answer for nearly all.
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
def _products(sizes: tuple[int, ...]) -> Products:
    return Products(sizes)


class Crowd:
    """What a claim may be one of: the parts of the truth, and the sizes of model and run, say it."""

    def __init__(self, parts: Sequence[Fraction], sizes: Iterable[int]) -> None:
        common = lcm(*(v.denominator for v in parts))
        self.grain = Fraction(gcd(*(int(v * common) for v in parts)), common)
        """What all parts of the truth are multiples of."""
        self.products = _products(tuple(sorted({2, *(s for s in sizes if s > 1)})))

    def has_product(self, amount: Amount) -> bool:
        """Whether a claim may be a product of sizes. Few digits are those of all kinds of numbers."""
        return fine(amount) and (amount.low < amount.high or self.products.weight(amount.low) > 0)


class Numbers:
    """Known numbers, as integers on a common denominator."""

    def __init__(self, crowd: Crowd, values: Iterable[int], scale: int) -> None:
        self.crowd, self.scale = crowd, scale
        self.values = sorted(set(values))
        self._whole: tuple[list[int], list[Fraction]] | None = None

    def chance(self, amount: Amount) -> Chance:
        """How many of them would be expected to fit a claim by chance."""
        return Chance(self.among_all(amount), self.among_products(amount))

    def among_all(self, amount: Amount, *, itself: bool = False) -> Fraction:
        """Among numbers of as many digits, or multiples of the grain, where that is more.

        Args:
            itself: a number that fits counts as one that lies near; otherwise it is not evidence of density.
        """
        width = Fraction(amount.high + 1 - amount.low)
        rooms = [(Fraction(amount.low * (p - 1), p), Fraction(amount.high * (p + 1), p)) for p in _PARTS]
        rooms = [rooms[0], *(r for r in rooms[1:] if r[1] - r[0] > _ROOM * width)]
        # Half a number where none is near.
        least = Fraction(min(len(self.values), 1), 2)
        own = 0 if itself else len(self._between(Fraction(amount.low), Fraction(amount.high)))
        taken = [max(Fraction(len(self._between(*r)) - own), least if r == rooms[0] else Fraction(0)) for r in rooms]
        most = max(t * width / max(r[1] - r[0], width) for t, r in zip(taken, rooms, strict=True))
        grain = self.crowd.grain
        if not fine(amount) or grain <= width or amount.low > amount.high // grain * grain:
            return most
        reach = max(Fraction(amount.low, _PARTS[0]), _ROOM // 2 * grain)
        low, high = max(amount.low - reach, Fraction(0)), amount.high + reach
        step = int(grain * self.scale)
        multiples = sum(1 for v in self._between(low, high) if not v % step)
        return max(most, max(Fraction(multiples - min(own, multiples)), least) * grain / (high - low))

    def among_products(self, amount: Amount) -> Fraction:
        """Among products of sizes, if the claim may be one."""
        if not self.crowd.has_product(amount):
            return Fraction(0)
        if self._whole is None:
            whole = [(v // self.scale, v % self.scale) for v in self.values]
            found = [(v, w) for v, rest in whole if not rest and (w := self.crowd.products.weight(v))]
            self._whole = [v for v, _ in found], [w for _, w in found]
        numbers, weights = self._whole
        near = slice(bisect_left(numbers, amount.low // _FAR), bisect_right(numbers, amount.high * _FAR))
        return sum(weights[near], Fraction(0)) / self.crowd.products.passing

    def _between(self, low: Fraction, high: Fraction) -> list[int]:
        """Those whose whole part lies there."""
        first, last = low * self.scale, (high + 1) * self.scale
        return self.values[bisect_left(self.values, first) : bisect_left(self.values, last)]
