"""Compare a claimed number with simple ratios and, if the claim states no text length, with the cost at every one.

The length is a free variable: where the costs at neighbouring lengths are as close as wrong numbers of the same model
are, some length fits by coincidence, and the fit is not evidence.

Where the true formulas are polynomials in the length, so is the cost under each counting convention. The polynomial
is determined from four exact values by Newton's forward differences, and checked at four further lengths. If no
difference is negative, it never decreases; then two neighbouring lengths, one with a cost below the claim and one
above, prove that no length fits.

Simple relations, an exact ratio or another number in the configuration, likewise have a free variable: wrong numbers of
a model are typically multiples of the greatest common divisor of its terms (their grain). A relation that most
multiples of the grain would fit is not evidence.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import pairwise, product
from math import ceil, comb, gcd, lcm
from typing import Final

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.identity import free_symbols
from costproof.algebra.symbols import parse, sym
from costproof.claims.catalogue import READINGS, STATED
from costproof.claims.effects import Effect
from costproof.claims.search import Chance, KnownNumbers, ReferenceClass, reach
from costproof.claims.terms import ClaimTerm
from costproof.claims.truth import TIED, ClaimCase
from costproof.claims.types import TOTAL, Amount, Lengths, Place, Reading
from costproof.ledger.metrics import STAGE_WIDE

_DEGREE: Final = 3
_CHECKED: Final = (_DEGREE + 7, 101, 1_009, 1_000_003)
"""Distances from the shortest length at which a fitted polynomial is checked."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost as a non-decreasing polynomial in the text length.

    It is stored as its forward differences at ``start``, as integers on the common denominator ``scale``.
    """

    start: int
    differences: tuple[int, ...]
    scale: int

    def at(self, length: int) -> Fraction:
        """Return the cost at a text length."""
        return Fraction(self._scaled(length), self.scale)

    def _scaled(self, length: int) -> int:
        """Return ``scale`` times the cost at a text length, by Newton's forward differences."""
        return sum(d * comb(length - self.start, k) for k, d in enumerate(self.differences))

    @property
    def grain(self) -> Fraction:
        """Return the greatest common divisor of the costs at all lengths, which wrong numbers are multiples of too."""
        return Fraction(gcd(*self.differences), self.scale)

    @property
    def grows(self) -> bool:
        """Return whether the cost depends on the length."""
        return any(self.differences[1:])

    def first(self, least: int) -> int:
        """Return the smallest length at which the cost is at least ``least``."""
        low, high, least = self.start - 1, self.start, least * self.scale
        while self._scaled(high) < least:
            low, high = high, self.start + 2 * (high - self.start) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._scaled(middle) < least else (low, middle)
        return high


@dataclass(frozen=True, slots=True)
class Held:
    """Result of comparing a claim with all text lengths, with the expected number of coincidental fits."""

    lengths: Lengths
    chances: tuple[Fraction, ...]
    """Expected number of coincidental fits of each set of conventions in ``lengths``."""

    def chance(self, most: int) -> Fraction:
        """Return the expected number of coincidental fits over all sets of at most ``most`` conventions."""
        readings = zip(self.lengths.readings, self.chances, strict=True)
        return sum((chance for r, chance in readings if len(r.causes) <= most), Fraction(0))


def best(lengths: Lengths) -> list[tuple[Reading, int]]:
    """Return the smallest sets of conventions under which some length fits, each with its first fitting length."""
    fit = [(r, r.fits[0].length) for r in lengths.readings if r.fits is not None]
    least = min((len(r.causes) for r, _ in fit), default=0)
    return [(r, length) for r, length in fit if len(r.causes) == least]


def hold(case: ClaimCase, amount: Amount, model: tuple[str, ...] = ()) -> Held | None:
    """Compare a claim with the cost at every text length, under each set of counting conventions.

    Args:
        case: the claim and the truth.
        amount: the claimed number.
        model: causes that change the model, for a claim about another model.

    Returns:
        ``None`` where no comparison is possible: the claim's stage has no length or the claim states it, the truth
        has no formulas, some cost is not a polynomial that never decreases, or ``model`` does not affect the metric.
    """
    held = case.once(" ".join(("lengths", *model)), lambda: _curves(case, model))
    if held is None:
        return None
    symbol, start, curves = held
    longest = _longest(case)
    read = [_reading(c, curve, amount, longest) for c, curve in curves.items()]
    readings, chances = tuple(r for r, _ in read), tuple(c for _, c in read)
    return Held(Lengths(symbol, start, model, readings, chance_text(sum(chances, Fraction(0))), longest), chances)


def _curves(case: ClaimCase, model: tuple[str, ...]) -> tuple[str, int, dict[tuple[str, ...], Curve]] | None:
    """Return the length's symbol, the shortest length, and the cost by length for each set of conventions."""
    claim, symbol = case.claim, _symbol(case)
    if symbol is None or claim.metric in STAGE_WIDE or not case.symbolic:
        return None
    exprs = {n.exprs[claim.metric] for n in case.nodes}
    if not all(_polynomial(e, frozenset({symbol, *TIED})) for e in exprs):
        return None
    start = 0 if symbol == "P" else 1
    other = tuple((c, "") for c in model)
    if model and not case.named.keys() & set(other):
        return None
    known = tuple((e.cause, e.requires) for e in case.stated)
    settled = {cause for key in claim.conventions for (other, _), cause in STATED.items() if other == key}
    families = _families(case.effects, {*model, *settled})
    chosen = [tuple(c for c in picked if c) for picked in product(*families)]
    lengths = [start + k for k in (*range(_DEGREE + 1), *_CHECKED)]
    numbers: dict[tuple[str, ...], list[Fraction]] = {c: [] for c in chosen}
    for length in lengths:
        there = case.at_length(symbol, length)
        if there is None:
            return None
        for causes in chosen:
            numbers[causes].append(reach(there.terms, there.chosen((*other, *known, *((c, "") for c in causes)))))
    curves = {c: curve for c, n in numbers.items() if (curve := _curve(start, lengths, n)) is not None}
    if len(curves) < len(numbers) or not (model or any(c.grows for c in curves.values())):
        return None
    return symbol, start, curves


def chance_text(expected: Fraction) -> str:
    """Format an upper bound of an expected number of coincidences as ``1/n``."""
    if expected == 0:
        return "0"
    return f"1/{int(1 / expected)}" if expected <= Fraction(1, 2) else str(ceil(expected))


@lru_cache(maxsize=4096)
def _polynomial(expr: str, names: frozenset[str]) -> bool:
    """Return whether an expression is a polynomial in these symbols, without a window or minimum."""
    return bool(parse(expr).is_polynomial(*map(sym, sorted(names))))


def _symbol(case: ClaimCase) -> str | None:
    """Return the symbol of the text length if a claim leaves it open; ``None`` also for rows of several lengths."""
    if case.capture.workload.rows:
        return None
    names = {n for call in case.calls for n in call.symbols} - case.claim.at.keys() - case.fixed
    return next((n for n in ("S", "P") if n in names and (n == "S" or case.claim.stage != TOTAL)), None)


def _longest(case: ClaimCase) -> int | None:
    """Return the maximum sequence length in the configuration; ``None`` if there is none."""
    found = [v for k, v in (case.capture.target.config or {}).items() if k.rpartition(".")[2] == "max_positions"]
    return max((v for v in found if isinstance(v, int)), default=None)


def _families(known: Iterable[Effect], barred: set[str]) -> list[tuple[str, ...]]:
    """Return groups of mutually exclusive conventions; an empty name stands for costproof's own convention.

    Args:
        known: the effects that can change the claim.
        barred: causes that the claim settles; groups that contain one are omitted.
    """
    found: dict[str, list[str]] = {}
    taken = set()
    for effect in known:
        names = (effect.cause, *effect.aliases)
        if barred & set(names):
            taken.add(effect.family)
        for name in names:
            if name in READINGS and name not in barred:
                found.setdefault(effect.family, [""]).append(name)
    return [tuple(names) for family, names in found.items() if family not in taken]


def _curve(start: int, lengths: Sequence[int], numbers: Sequence[Fraction]) -> Curve | None:
    """Return the polynomial through the first costs; ``None`` if a later cost differs from it or is smaller."""
    row, differences = list(numbers[: _DEGREE + 1]), []
    while row:
        differences.append(row[0])
        row = [b - a for a, b in pairwise(row)]
    scale = lcm(*(d.denominator for d in differences))
    curve = Curve(start, tuple(int(d * scale) for d in differences), scale)
    if min(differences) < 0 or any(curve.at(s) != n for s, n in zip(lengths, numbers, strict=True)):
        return None
    return curve


def _reading(causes: tuple[str, ...], curve: Curve, amount: Amount, longest: int | None) -> tuple[Reading, Fraction]:
    def place(length: int) -> Place:
        return Place(length, int(curve.at(length)))

    width = Fraction(amount.high - amount.low + 1)
    if not curve.grows:
        only = place(curve.start)
        if amount.low <= only.number <= amount.high:
            return Reading(causes, None, None, (only, only)), width / max(amount.high, 1)
        below, above = (only, None) if only.number < amount.low else (None, only)
        return Reading(causes, below, above, None), Fraction(0)
    first, past = curve.first(amount.low), curve.first(amount.high + 1)
    if longest is not None and first > longest:
        return Reading(causes, place(longest), None, None), Fraction(0)
    fits = (place(first), place(past - 1)) if first < past else None
    if longest is not None and past > longest:
        fits = (place(first), place(longest)) if fits else None
    above = place(past) if longest is None or past <= longest else None
    if first == curve.start:
        return Reading(causes, None, above, fits), Fraction(1 if fits else 0)
    gap = curve.at(first) - curve.at(first - 1)
    return Reading(causes, place(first - 1), above, fits), min(max(width, curve.grain) / gap, Fraction(1))


_MOST_TIMES: Final = 1_024
_SMALL: Final = 12
"""Limit of p and q in the ratios p/q tried, besides n and 1/n for n up to ``_MOST_TIMES``."""
_FARTHEST: Final = 16
"""Multiple of a size's actual value up to which other values are tried, and the smallest such limit."""
_CLOSE: Final = Fraction(9, 8)
_FAR: Final = Fraction(5)
"""Factor below and above the claim's ratio within which the density of tried ratios is measured."""
RARE: Final = Fraction(1, 1_000)
"""Maximum expected number of coincidental fits at which another length is evidence for a number with many digits."""
ONE_NUMBER: Final = Fraction(1, 1_200)
"""Maximum expected number of coincidental fits for another value of one of a model's about ten sizes."""
_SMALL_NUMBER: Final = 64
_WIDTHS: Final = 8
"""Divisor of the model's larger sizes, which are widths; a fit with another value is not evidence."""
_OF_RUN: Final = ("B", "N")


@dataclass(frozen=True, slots=True)
class Relation:
    """A simple relation that turns the true number into the claim."""

    cause: str
    what: str
    chance: Chance
    times: Fraction = Fraction(0)
    """Factor on the true number, or on the size of the model or run that changes."""


def ratio(case: ClaimCase, amount: Amount, reference: ReferenceClass) -> tuple[Relation | None, Chance]:
    """Return the simplest exact ratio of the claim to the true number, and how many ratios would fit by chance."""
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
    """Return changes of one size of the model or run that lead to the claim, the best evidence first."""
    found = []
    for line in _free(case):
        value = line.solve(amount)
        if value is not None:
            what = f"{line.name} = {value:,} in place of {line.usual:,}"
            chance = Chance(line.chance(value, amount))
            found.append(Relation(f"{line.name} = {value}", what, chance, Fraction(value, line.usual)))
    return sorted(found, key=lambda r: (r.chance.numbers, r.cause))


def expected(case: ClaimCase, amount: Amount) -> Fraction:
    """Return the expected number of sizes whose change would fit by coincidence and still count as evidence."""
    return sum((c for line in _free(case) if (c := line.chance_near(amount)) <= ONE_NUMBER), Fraction(0))


@dataclass(frozen=True)
class _Line:
    """The claimed quantity as an increasing function of one size of the model or the run."""

    name: str
    usual: int
    most: int
    at: Callable[[int], Fraction | None]

    @cached_property
    def grain(self) -> Fraction:
        """Return the greatest common divisor of the results for sizes 1, 2 and 3, which also divides wrong results."""
        values = [v for v in map(self.at, (1, 2, 3)) if v is not None]
        common = lcm(*(v.denominator for v in values))
        return Fraction(gcd(*(int(v * common) for v in values)), common)

    def first(self, least: Fraction) -> int | None:
        """Return the smallest size whose result is at least ``least``; ``None`` if no size reaches it."""
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
        """Return the size whose result is the claim; ``None`` if no size gives it or the actual size does."""
        value = self.first(Fraction(amount.low))
        if value is None or value == self.usual or (there := self.at(value)) is None:
            return None
        return value if amount.low <= there < amount.high + 1 else None

    def chance(self, value: int, amount: Amount) -> Fraction:
        """Return the probability that a fit of this size is a coincidence, from the results of neighbouring sizes.

        It is 1 for a value that no published model has.
        """
        here, before = self.at(value), self.at(value - 1) if value > 1 else Fraction(0)
        if here is None or before is None or here <= before or (value > _SMALL_NUMBER and value % _WIDTHS):
            return Fraction(1)
        return min(max(self.grain, Fraction(amount.high - amount.low + 1)) / (here - before), Fraction(1))

    def chance_near(self, amount: Amount) -> Fraction:
        """Return the expected number of coincidental fits near the claim; 0 if no size reaches the claim."""
        value = self.first(Fraction(amount.low))
        return Fraction(0) if value is None else self.chance(value, amount)


@lru_cache(maxsize=1)
def _ratios() -> tuple[Fraction, ...]:
    """Return all ratios to try, in ascending order."""
    times = {r for k in range(2, _MOST_TIMES + 1) for r in (Fraction(k), Fraction(1, k))}
    parts = {Fraction(p, q) for p in range(1, _SMALL + 1) for q in range(1, _SMALL + 1) if p != q}
    return tuple(sorted(times | parts))


def _free(case: ClaimCase) -> tuple[_Line, ...]:
    return case.once("numbers", lambda: tuple(replace(line, at=cache(line.at)) for line in _lines(case)))


def _lines(case: ClaimCase) -> Iterator[_Line]:
    """Yield the sizes that an author may have mistaken: symbols of configuration and run, numbers of layers."""
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
    """Return the claimed quantity as a function of one symbol's value."""
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
    """Return the claimed quantity as a function of the number of layers of one kind."""
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
    """Return the number of terms of each kind; layers of equal cost are of one kind."""
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
