"""Simple relations between a claimed number and the truth: an exact ratio, or another number in the configuration.

Each relation has a free variable, so some wrong numbers fit it by coincidence: wrong numbers of a model are typically
multiples of the greatest common divisor of its terms (their grain). A relation that most multiples of the grain would
fit is not evidence.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from math import gcd, lcm
from typing import Final

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.identity import free_symbols
from costproof.claims.coincidence import Chance, KnownNumbers, ReferenceClass
from costproof.claims.effects import Effect
from costproof.claims.search import reach
from costproof.claims.terms import ClaimTerm
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount

_MOST_TIMES: Final = 1_024
_SMALL: Final = 12
"""The ratios tried are n and 1/n for n up to ``_MOST_TIMES``, and fractions p/q with p and q up to ``_SMALL``."""
_FARTHEST: Final = 16
"""Values of a number are tried up to this multiple of its actual value, and at least up to this value."""
_CLOSE: Final = Fraction(9, 8)
_FAR: Final = Fraction(5)
"""The density of ratios is measured up to these factors from the claim's: among all numbers, and among products."""
RARE: Final = Fraction(1, 1_000)
"""The most coincidental fits to expect at which another value of one number counts as evidence."""
_OF_RUN: Final = ("B", "N")


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that leads from the truth to the claim."""

    cause: str
    what: str
    chance: Chance
    times: Fraction = Fraction(0)
    """The factor on the truth, or on the number of the configuration or run that changes."""


def ratio(case: ClaimCase, amount: Amount, reference: ReferenceClass) -> tuple[Relation | None, Chance]:
    """Return the simplest exact ratio of claim and truth, and how many would fit by coincidence."""
    base = reach(case.terms, case.stated)
    if base <= 0 or amount.low <= 0:
        return None, Chance()
    low, high = Fraction(amount.low) / base, Fraction(amount.high + 1) / base

    def near(part: Fraction) -> list[Fraction]:
        return list(_ratios()[bisect_left(_ratios(), low / part) : bisect_right(_ratios(), high * part)])

    close = near(_CLOSE)
    fits = sorted((r for r in close if low <= r < high), key=_height)
    everyone = min(_numbers(reference, close, base).among_all(amount, itself=True), Fraction(1))
    chance = Chance(everyone)
    if reference.has_product(amount):
        # If the truth is a product of sizes, so are its multiples: only ratios that are as simple are counted.
        simple = [r for r in near(_FAR) if not fits or _height(r) <= _height(fits[0])]
        chance = Chance(everyone, _numbers(reference, simple, base).among_products(amount))
    if not fits:
        return None, chance
    cause = f"{fits[0]} x the truth"
    return Relation(cause, f"exactly {fits[0]} of what is counted here", chance, fits[0]), chance


def _height(ratio: Fraction) -> tuple[int, Fraction]:
    return ratio.numerator + ratio.denominator, ratio


def _numbers(reference: ReferenceClass, ratios: Iterable[Fraction], base: Fraction) -> KnownNumbers:
    found = [r * base for r in ratios]
    scale = lcm(*(n.denominator for n in found))
    return KnownNumbers(reference, (int(n * scale) for n in found), scale)


def numbers(case: ClaimCase, amount: Amount) -> list[Relation]:
    """Return changed values of configuration or run with which the truth would equal the claim, best evidence first."""
    found = []
    for line in _free(case):
        value = line.solve(amount)
        if value is not None:
            what = f"{line.name} = {value:,} in place of {line.usual:,}"
            chance = Chance(line.chance(value, amount))
            found.append(Relation(f"{line.name} = {value}", what, chance, Fraction(value, line.usual)))
    return sorted(found, key=lambda r: (r.chance.numbers, r.cause))


def expected(case: ClaimCase, amount: Amount) -> Fraction:
    """Return the expected coincidental fits of numbers whose fit would pass as evidence."""
    return sum((c for line in _free(case) if (c := line.chance_near(amount)) <= RARE), Fraction(0))


@dataclass(frozen=True)
class _Line:
    """The claim's number as an increasing function of one number of the configuration or the run."""

    name: str
    usual: int
    most: int
    at: Callable[[int], Fraction | None]

    @cached_property
    def grain(self) -> Fraction:
        """The greatest common divisor of the results for 1, 2 and 3; wrong numbers of the same sizes share it."""
        values = [v for v in map(self.at, (1, 2, 3)) if v is not None]
        common = lcm(*(v.denominator for v in values))
        return Fraction(gcd(*(int(v * common) for v in values)), common)

    def first(self, least: Fraction) -> int | None:
        """Return the smallest value whose result is at least ``least``; None if no value reaches it."""
        low, high = 0, self.most
        if (last := self.at(high)) is None or last < least:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if (value := self.at(middle)) is None:
                return None
            low, high = (middle, high) if value < least else (low, middle)
        return high

    def solve(self, amount: Amount) -> int | None:
        """Return the value that gives the claim; ``None`` if no value does, or the actual value does."""
        value = self.first(Fraction(amount.low))
        if value is None or value == self.usual or (there := self.at(value)) is None:
            return None
        return value if amount.low <= there < amount.high + 1 else None

    def chance(self, value: int, amount: Amount) -> Fraction:
        """Return the probability that a multiple of the grain fits by coincidence, given the results around a value."""
        here, before = self.at(value), self.at(value - 1) if value > 1 else Fraction(0)
        if here is None or before is None or here <= before:
            return Fraction(1)
        return min(max(self.grain, Fraction(amount.high - amount.low + 1)) / (here - before), Fraction(1))

    def chance_near(self, amount: Amount) -> Fraction:
        """Return the expected coincidental fits near the claim; 0 if no value reaches the claim."""
        value = self.first(Fraction(amount.low))
        return Fraction(0) if value is None else self.chance(value, amount)


@lru_cache(maxsize=1)
def _ratios() -> tuple[Fraction, ...]:
    """Return all ratios that are tried, in ascending order."""
    times = {r for k in range(2, _MOST_TIMES + 1) for r in (Fraction(k), Fraction(1, k))}
    parts = {Fraction(p, q) for p in range(1, _SMALL + 1) for q in range(1, _SMALL + 1) if p != q}
    return tuple(sorted(times | parts))


def _free(case: ClaimCase) -> tuple[_Line, ...]:
    return case.once("numbers", lambda: tuple(replace(line, at=cache(line.at)) for line in _lines(case)))


def _lines(case: ClaimCase) -> Iterator[_Line]:
    """Yield the numbers that may differ: configuration symbols in formulas, unstated run symbols, and layer counts."""
    on = [i for i in case.terms if i.counted]
    if not all(i.expr for i in on):
        return
    held = set[str]().union(*(free_symbols(i.expr) for i in on))
    config = case.capture.target.symbols
    settled = case.claim.at.keys() | case.fixed
    for name in sorted(held & {*config, *(n for n in _OF_RUN if n not in settled)}):
        values = {i.values[name] for i in on if name in i.values}
        if len(values) == 1 and (usual := values.pop()) > 0:
            yield _Line(name, usual, _FARTHEST * max(usual, _FARTHEST), _moved(case, name))
    for tower in sorted({i.tower for i in on}):
        usual = config.get(f"{tower}_layers", 0)
        alike = _alike(case.terms)
        for count in sorted({alike[_kind(i)] for i in on if i.tower == tower and i.within("layer")}) if usual else ():
            more = f"{tower}_layers" + (f" (those of {count})" if count < usual else "")
            yield _Line(more, usual, _FARTHEST * usual, _layers(case, tower, count, usual))


def _moved(case: ClaimCase, name: str) -> Callable[[int], Fraction | None]:
    """Return the claim's number as a function of the value of a symbol."""
    factors = _factors(case.stated)
    counted = [(term, factors.get(index, 1)) for index, term in enumerate(case.terms) if _counts(case, index)]
    moving = [(i, f) for i, f in counted if i.expr and name in free_symbols(i.expr)]
    rest = sum((i.value * f for i, f in counted), Fraction(0)) - sum((i.value * f for i, f in moving), Fraction(0))

    def number(value: int) -> Fraction | None:
        total = rest
        for term, factor in moving:
            try:
                total += Fraction(compile_expression(term.expr).run({**term.values, name: value})) * term.count * factor
            except (KeyError, ZeroDivisionError):
                return None
        return total

    return number


def _layers(case: ClaimCase, tower: str, count: int, usual: int) -> Callable[[int], Fraction | None]:
    """Return the claim's number as a function of the number of layers of one kind."""
    factors = _factors(case.stated)
    values = [
        (i, i.value * factors.get(index, 1)) for index, i in enumerate(case.terms) if _counts(case, index)
    ]  # fmt: skip
    base = sum((v for _, v in values), Fraction(0))
    inside = [(i, v) for i, v in values if i.tower == tower and i.within("layer")]
    alike = _alike(case.terms)
    one = sum((v / alike[_kind(i)] for i, v in inside if alike[_kind(i)] in (count, usual)), Fraction(0))
    return lambda number: base + (number - usual) * one


def _alike(terms: Iterable[ClaimTerm]) -> Counter[tuple[object, ...]]:
    """Count the nodes of each kind; layers with and without a window of equal cost are one kind."""
    found: Counter[tuple[object, ...]] = Counter()
    for term in terms:
        found[_kind(term)] += term.count
    return found


def _kind(term: ClaimTerm) -> tuple[object, ...]:
    return term.stage, term.invocation, term.role, term.owner, term.kind, term.expr, term.value / term.count


def _counts(case: ClaimCase, index: int) -> bool:
    return case.terms[index].counted or any(index in e.switches for e in case.stated)


def _factors(effects: tuple[Effect, ...]) -> dict[int, Fraction]:
    found: dict[int, Fraction] = {}
    for effect in effects:
        for index, factor in effect.factors.items():
            found[index] = found.get(index, Fraction(1)) * factor
    return found
