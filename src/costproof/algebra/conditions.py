"""Represent and format conditions on sizes, under which a formula, an exported graph or a claim holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import factored, parse, sym, text
from costproof.ledger.errors import BadInput

MOST_SHOWN: Final = 200
"""Longest condition that reports print, in characters; a longer one appears only as an expression in data."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the sizes of a run, which holds where an expression in them, its margin, is not negative."""

    text: str
    """The condition in mathematical notation: ``P >= 511``."""
    margin: str
    """Text of the expression: ``P - 511``."""

    @classmethod
    def from_margin(cls, margin: sympy.Expr) -> Condition:
        """Return the condition that an expression is not negative, with a text in mathematical notation."""
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
    """Return whether all conditions hold; a condition without a value does not."""
    return all(condition.holds(sizes) for condition in conditions)


def merge_bounds(margins: Iterable[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Return margins with the bounds of one symbol merged: the narrowest in each direction first, then the others."""
    bounds, others = dict[tuple[str, int], int](), list[sympy.Expr]()
    for margin in margins:
        symbol, *more = sorted(margin.free_symbols, key=str)
        slope = margin.coeff(symbol)
        rest = sympy.expand(margin - slope * symbol)
        if more or not slope.is_Integer or not rest.is_Integer or slope == 0:
            others.append(margin)
            continue
        end = int(sympy.ceiling(-rest / slope) if slope > 0 else sympy.floor(-rest / slope))
        key = (symbol.name, int(sympy.sign(slope)))
        before = bounds.get(key, end)
        bounds[key] = max(before, end) if slope > 0 else min(before, end)
    narrow = (sym(name) - end if direction > 0 else end - sym(name) for (name, direction), end in bounds.items())
    return (*narrow, *dict.fromkeys(others))


def format_condition(margin: sympy.Expr) -> str:
    """Return a condition in mathematical notation: ``P >= 511``, ``B*S <= 400``, ``S != 100``."""
    for sign, square in (("==", -margin), ("!=", margin + 1)):
        times, of = factored(square).as_coeff_Mul()
        squares = sympy.Mul.make_args(of)
        if times > 0 and all(s.is_Pow and s.exp.is_even and s.exp > 0 for s in squares):
            return _sides(sympy.Mul(*(s.base for s in squares if not s.base.is_positive)), sign)
    return _sides(margin, ">=")


def _sides(margin: sympy.Expr, sign: str) -> str:
    """Return ``left sign right`` without minus signs, divided by the common factor."""
    terms = sympy.expand(margin).as_coefficients_dict()
    common = sympy.gcd_list([abs(n) for n in terms.values()]) if len(terms) > 1 else 1
    left, right = (
        sympy.Add(*(abs(n) / common * term for term, n in terms.items() if (n > 0) == up)) for up in (True, False)
    )
    if left.is_number:
        left, right, sign = right, left, {">=": "<="}.get(sign, sign)
    shown = f"{text(left)} {sign} {text(right)}"
    return shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 2]} …"
