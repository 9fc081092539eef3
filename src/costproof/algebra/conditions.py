"""Represent conditions on sizes, under which a formula, an exported graph or a claim holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import factored, parse, sym, text
from costproof.ledger.errors import BadInput

MOST_SHOWN: Final = 200
"""Length in characters of the longest condition that reports print; longer ones appear only in data."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on the sizes of a run, which holds where the expression ``margin`` is not negative."""

    text: str
    """The condition in mathematical notation: ``P >= 511``."""
    margin: str
    """Text of an expression that is not negative where the condition holds: ``P - 511``."""

    @classmethod
    def from_margin(cls, margin: sympy.Expr) -> Condition:
        """Return the condition ``margin >= 0``, with its text in mathematical notation: ``P >= 511``."""
        return cls(format_condition(margin), text(margin))

    @classmethod
    def multiple(cls, name: str, step: int) -> Condition:
        """Return the condition that a symbol is a multiple of a number."""
        return cls(f"{name} is a multiple of {step}", text(step * sympy.floor(sym(name) / step) - sym(name)))

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols in the condition, such as ``S``."""
        return frozenset(s.name for s in parse(self.margin).free_symbols)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the condition holds at these sizes; false if a symbol has no value."""
        try:
            return evaluate(parse(self.margin), sizes) >= 0
        except BadInput:
            return False


def all_hold(conditions: Iterable[Condition], sizes: Mapping[str, int]) -> bool:
    """Return whether all conditions hold at these sizes; false if a symbol has no value."""
    return all(condition.holds(sizes) for condition in conditions)


def merge_bounds(margins: Iterable[sympy.Expr], steps: Mapping[str, int] | None = None) -> tuple[sympy.Expr, ...]:
    """Merge all conditions on the same integer expression; return the merged margins, those with one symbol first.

    ``S >= 5`` and ``S != 5`` become ``S >= 6``, ``2*B*S >= 9`` becomes ``B*S >= 5``, and ``2*S != 9`` is left out.

    Args:
        margins: expressions that are not negative where their conditions hold.
        steps: symbols that are multiples of a number, to which their bounds are rounded.
    """
    values, others = dict[sympy.Expr, _IntegerSet](), list[sympy.Expr]()
    for margin in (part for m in margins for part in (m.args if isinstance(m, sympy.Min) else (m,))):
        unequal, equal = _squared(margin + 1, least=1), _squared(-margin)
        zero_at = next((base for base in (unequal, equal) if base is not None), margin)
        if (linear := _linear(zero_at)) is None:
            others.append(margin)
            continue
        of, slope, constant = linear
        zero = -constant / slope
        if equal is not None and not zero.is_Integer:
            others.append(margin)  # holds nowhere
            continue
        known = values.setdefault(of, _IntegerSet((steps or {}).get(str(of), 1)))
        if unequal is not None:
            known.excluded |= {int(zero)} if zero.is_Integer else set()
            continue
        if equal is not None or slope > 0:
            known.raise_least(int(sympy.ceiling(zero)))
        if equal is not None or slope < 0:
            known.lower_greatest(int(sympy.floor(zero)))
    narrow = sorted(values.items(), key=lambda item: len(item[0].free_symbols) > 1)
    return (*(margin for of, known in narrow for margin in known.margins(of)), *dict.fromkeys(others))


@dataclass(slots=True)
class _IntegerSet:
    """Set of the multiples of a number between two bounds, except some of them."""

    step: int
    least: int | None = None
    greatest: int | None = None
    excluded: set[int] = field(default_factory=set)

    def raise_least(self, least: int) -> None:
        """Exclude the numbers below ``least``."""
        self.least = least if self.least is None else max(self.least, least)

    def lower_greatest(self, greatest: int) -> None:
        """Exclude the numbers above ``greatest``."""
        self.greatest = greatest if self.greatest is None else min(self.greatest, greatest)

    def margins(self, of: sympy.Expr) -> Iterator[sympy.Expr]:
        """Yield margins of the fewest conditions that select exactly this set."""
        least = None if self.least is None else -(-self.least // self.step) * self.step
        greatest = None if self.greatest is None else self.greatest // self.step * self.step
        while least in self.excluded:
            least += self.step
        while greatest in self.excluded:
            greatest -= self.step
        if least is not None and least == greatest:
            yield sympy.expand(-((of - least) ** 2))
            return
        if least is not None:
            yield of - least
        if greatest is not None:
            yield greatest - of
        for value in sorted(self.excluded):
            outside = (least is not None and value < least) or (greatest is not None and value > greatest)
            if not outside and value % self.step == 0:
                yield sympy.expand((of - value) ** 2 - 1)


def _linear(margin: sympy.Expr) -> tuple[sympy.Expr, sympy.Rational, sympy.Rational] | None:
    """Return (e, slope, constant) with ``margin = slope * e + constant``, where e has no common factor.

    ``None`` if e is not an integer at all sizes.
    """
    constant, rest = sympy.expand(margin).as_coeff_Add()
    factor, of = rest.as_content_primitive()
    if sympy.Add.make_args(of)[0].as_coeff_Mul()[0].is_negative:
        factor, of = -factor, -of
    return (of, factor, constant) if of.free_symbols and of.is_integer else None


def _squared(expr: sympy.Expr, least: int = 0) -> sympy.Expr | None:
    """Return e with ``expr = n * e**2`` for some number n of at least ``least``; ``None`` if there is none."""
    times, of = factored(expr).as_coeff_Mul()
    squares = sympy.Mul.make_args(of)
    if times <= 0 or times < least or not all(s.is_Pow and s.exp.is_even and s.exp > 0 for s in squares):
        return None
    return sympy.Mul(*(s.base for s in squares if not s.base.is_positive))


def format_condition(margin: sympy.Expr) -> str:
    """Return a condition in mathematical notation: ``P >= 511``, ``B*S <= 400``, ``S != 100``."""
    for sign, zero in (("!=", _squared(margin + 1, least=1)), ("==", _squared(-margin))):
        if zero is not None:
            return _sides(zero, sign)
    return _sides(margin, ">=")


def _sides(margin: sympy.Expr, sign: str) -> str:
    """Return ``left sign right`` for a margin, with no minus signs and no common factor."""
    terms = sympy.expand(margin).as_coefficients_dict()
    common = sympy.gcd_list([abs(n) for n in terms.values()]) if len(terms) > 1 else 1
    left, right = (
        sympy.Add(*(abs(n) / common * term for term, n in terms.items() if (n > 0) == up)) for up in (True, False)
    )
    if left.is_number:
        left, right, sign = right, left, {">=": "<="}.get(sign, sign)
    shown = f"{text(left)} {sign} {text(right)}"
    return shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 2]} …"
