"""Compare a claimed number with the cost at every length of prompt or context, which a claim may not state.

The length is a free variable: where the costs at neighbouring lengths are as close as wrong numbers of the same model
are, some length fits by coincidence, and the fit is not evidence.

Where the true formulas are polynomials in the length, so is the cost under each counting convention. The polynomial
is determined from four exact values by Newton's forward differences, and checked at four further lengths. If no
difference is negative, it never decreases; then two neighbouring lengths, one with a cost below the claim and one
above, prove that no length fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from math import ceil, comb, gcd, lcm
from typing import Final

from costproof.algebra.symbols import parse, sym
from costproof.claims.catalogue import READINGS, STATED
from costproof.claims.effects import Effect
from costproof.claims.search import reach
from costproof.claims.truth import TIED, ClaimCase
from costproof.claims.types import TOTAL, Amount, Lengths, Place, Reading
from costproof.ledger.metrics import STAGE_WIDE

_DEGREE: Final = 3
_CHECKED: Final = (_DEGREE + 7, 101, 1_009, 1_000_003)
"""Steps from the shortest length to the lengths that a polynomial is checked at."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost as a polynomial in the length that never decreases.

    It is stored as its forward differences at ``start``, as integers on the common denominator ``scale``.
    """

    start: int
    differences: tuple[int, ...]
    scale: int

    def at(self, length: int) -> Fraction:
        """Return the cost at a length."""
        return Fraction(self._scaled(length), self.scale)

    def _scaled(self, length: int) -> int:
        """Evaluate Newton's forward difference formula, without the division by ``scale``."""
        return sum(d * comb(length - self.start, k) for k, d in enumerate(self.differences))

    @property
    def grain(self) -> Fraction:
        """The greatest common divisor of the costs at all lengths; wrong numbers of the same sizes share it."""
        return Fraction(gcd(*self.differences), self.scale)

    @property
    def grows(self) -> bool:
        """Whether the cost depends on the length."""
        return any(self.differences[1:])

    def first(self, least: int) -> int:
        """Return the smallest length whose cost is at least ``least``."""
        low, high, least = self.start - 1, self.start, least * self.scale
        while self._scaled(high) < least:
            low, high = high, self.start + 2 * (high - self.start) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._scaled(middle) < least else (low, middle)
        return high


@dataclass(frozen=True, slots=True)
class Held:
    """A claim compared with all lengths, and the coincidental fits to expect."""

    lengths: Lengths
    chances: tuple[Fraction, ...]
    """Expected number of coincidental fits of each reading in ``lengths``."""

    def chance(self, most: int) -> Fraction:
        """Return the expected number of coincidental fits of all readings with at most ``most`` conventions."""
        readings = zip(self.lengths.readings, self.chances, strict=True)
        return sum((chance for r, chance in readings if len(r.causes) <= most), Fraction(0))


def best(lengths: Lengths) -> list[tuple[Reading, int]]:
    """Return the readings that fit with the fewest conventions, each with the first length at which it fits."""
    fit = [(r, r.fits[0].length) for r in lengths.readings if r.fits is not None]
    least = min((len(r.causes) for r, _ in fit), default=0)
    return [(r, length) for r, length in fit if len(r.causes) == least]


def hold(case: ClaimCase, amount: Amount, model: tuple[str, ...] = ()) -> Held | None:
    """Compare a claim with the cost at all lengths, under every convention of counting the same work.

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
    """Return the symbol of the length, the shortest length, and the cost as a function of length for each reading."""
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
    """Return an upper bound on the expected coincidental fits, as ``1/n``."""
    if expected == 0:
        return "0"
    return f"1/{int(1 / expected)}" if expected <= Fraction(1, 2) else str(ceil(expected))


@lru_cache(maxsize=4096)
def _polynomial(expr: str, names: frozenset[str]) -> bool:
    """Whether an expression is a polynomial in these symbols, thus without a window or minimum that limits it."""
    return bool(parse(expr).is_polynomial(*map(sym, sorted(names))))


def _symbol(case: ClaimCase) -> str | None:
    names = {n for call in case.calls for n in call.symbols} - case.claim.at.keys() - case.fixed
    return next((n for n in ("S", "P") if n in names and (n == "S" or case.claim.stage != TOTAL)), None)


def _longest(case: ClaimCase) -> int | None:
    """Return the model's number of positions according to its configuration; ``None`` if it is not stated."""
    found = [v for k, v in (case.capture.target.config or {}).items() if k.rpartition(".")[2] == "max_positions"]
    return max((v for v in found if isinstance(v, int)), default=None)


def _families(known: Iterable[Effect], barred: set[str]) -> list[tuple[str, ...]]:
    """Return groups of conventions that exclude each other; the empty name in each is costproof's own convention.

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
    """Return the polynomial through the first costs; None if it misses a later one or decreases anywhere."""
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
