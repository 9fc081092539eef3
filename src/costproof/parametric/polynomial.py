"""Represent costs as polynomials in the symbols that vary, with constants substituted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import lcm
from typing import Any, Final

import sympy

from costproof.algebra.symbols import text
from costproof.ledger.errors import BadInput
from costproof.parametric.concolic import SizeExpr

Monomial = tuple[tuple[int, int], ...]
"""(atom number, exponent) pairs in the order of the atoms; exponents may be negative."""
Polynomial = Mapping[Monomial, Fraction]

ONE: Final[Monomial] = ()


@dataclass(frozen=True, slots=True)
class SizeAtom:
    """Polynomial variable for a size, or an expression of sizes, that the target computes."""

    expr: SizeExpr


@dataclass(frozen=True, slots=True)
class FunctionAtom:
    """Polynomial variable for a function in a formula: ``floor``, ``Min``, ``Max`` or ``sum``."""

    name: str
    parts: tuple[tuple[tuple[Monomial, int], ...], ...]
    """Arguments as polynomials with integer coefficients; ``floor`` has the dividend and the divisor."""


@dataclass(slots=True)
class AtomTable:
    """Table of the polynomial variables (atoms) of a regime, each numbered after the atoms in its arguments."""

    found: list[SizeAtom | FunctionAtom] = field(default_factory=list)
    numbers: dict[SizeAtom | FunctionAtom, int] = field(default_factory=dict)

    def from_atom(self, atom: SizeAtom | FunctionAtom) -> Polynomial:
        """Return an atom (a size or a function) as a polynomial, and number it if it is new."""
        if atom not in self.numbers:
            self.numbers[atom] = len(self.found)
            self.found.append(atom)
        return {((self.numbers[atom], 1),): Fraction(1)}

    def from_size(self, expr: SizeExpr) -> Polynomial:
        """Return the polynomial of a size expression, with an atom for everything but sums and products."""
        if expr[0] == "int":
            return _constant(expr[1])
        if expr[0] == "*":
            left, right = self.from_size(expr[1]), self.from_size(expr[2])
            return multiply(left, right)
        return self.from_atom(SizeAtom(expr))

    def from_formula(self, node: sympy.Expr, symbols: Mapping[str, Polynomial]) -> Polynomial:
        """Return the polynomial of a formula, given the polynomials of its symbols.

        Raises:
            BadInput: the formula has a function without an exact value, or a symbol without a value.
        """
        if node.is_Rational:
            return _constant(Fraction(int(node.p), int(node.q)))
        if node.is_Symbol:
            if node.name not in symbols:
                raise BadInput("a symbol of a formula has no value in these settings", where=str(node.name))
            return symbols[node.name]
        if node.is_Pow and node.exp.is_Integer:
            return self._power(self.from_formula(node.base, symbols), int(node.exp))
        parts = [self.from_formula(part, symbols) for part in node.args]
        if node.is_Add:
            return add(parts)
        if node.is_Mul:
            result: Polynomial = _constant(1)
            for part in parts:
                result = multiply(result, part)
            return result
        return self._function(node.func, parts, text(node))

    def largest(self, parts: list[Polynomial]) -> Polynomial:
        """Return the maximum of several nonnegative polynomials; 0 without polynomials."""
        return self._function(sympy.Max, parts, "Max") if len(parts) > 1 else parts[0] if parts else _constant(0)

    def _power(self, base: Polynomial, exponent: int) -> Polynomial:
        if exponent < 0 and len(base) > 1:
            common, (whole,) = _integers([base])
            base = {m: c / common for m, c in self.from_atom(FunctionAtom("sum", (whole,))).items()}
        if exponent < 0:
            ((monomial, factor),) = base.items()
            base, exponent = {tuple((a, -e) for a, e in monomial): 1 / factor}, -exponent
        result: Polynomial = _constant(1)
        for _ in range(exponent):
            result = multiply(result, base)
        return result

    def _function(self, function: Any, parts: list[Polynomial], shown: str) -> Polynomial:
        if function is sympy.ceiling:
            # ceiling(x) = -floor(-x)
            inner = self._function(sympy.floor, [scale(parts[0], -1)], shown)
            return scale(inner, -1)
        if function is sympy.floor:
            if set(parts[0]) <= {ONE}:
                return _constant(parts[0].get(ONE, Fraction(0)).__floor__())
            under = _clearing(parts)
            factor, (dividend,) = _integers([multiply(parts[0], {under: Fraction(1)})])
            return self.from_atom(FunctionAtom("floor", (dividend, ((under, factor),))))
        if function in (sympy.Min, sympy.Max):
            choose = min if function is sympy.Min else max
            if all(set(p) <= {ONE} for p in parts):
                return _constant(choose(p.get(ONE, Fraction(0)) for p in parts))
            under = _clearing(parts)  # of sizes, which are positive
            factor, whole = _integers([multiply(part, {under: Fraction(1)}) for part in parts])
            chosen = self.from_atom(FunctionAtom(function.__name__, tuple(whole)))
            return multiply(chosen, {tuple((atom, -power) for atom, power in under): Fraction(1, factor)})
        raise BadInput("an expression uses a function that cannot be evaluated exactly", where=shown)


def _constant(number: int | Fraction) -> Polynomial:
    return {ONE: Fraction(number)} if number else {}


def add(parts: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of polynomials."""
    result: dict[Monomial, Fraction] = {}
    for part in parts:
        for monomial, factor in part.items():
            result[monomial] = result.get(monomial, Fraction(0)) + factor
    return {m: c for m, c in result.items() if c}


def scale(polynomial: Polynomial, factor: int | Fraction) -> Polynomial:
    """Return a polynomial times a number."""
    return {m: c * factor for m, c in polynomial.items()} if factor else {}


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    """Return the product of two polynomials."""
    result: dict[Monomial, Fraction] = {}
    for m, c in left.items():
        for n, d in right.items():
            both = _multiply_monomials(m, n)
            result[both] = result.get(both, Fraction(0)) + c * d
    return {m: c for m, c in result.items() if c}


@cache
def _multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for atom, exponent in right:
        powers[atom] = powers.get(atom, 0) + exponent
    return tuple(sorted((a, e) for a, e in powers.items() if e))


def _clearing(parts: Iterable[Polynomial]) -> Monomial:
    """Return the monomial that removes all negative exponents when polynomials are multiplied by it."""
    least: dict[int, int] = {}
    for part in parts:
        for monomial in part:
            for atom, exponent in monomial:
                least[atom] = min(least.get(atom, 0), exponent)
    return tuple(sorted((a, -e) for a, e in least.items() if e < 0))


def _integers(parts: list[Polynomial]) -> tuple[int, list[tuple[tuple[Monomial, int], ...]]]:
    """Return the least common denominator of the coefficients, and the polynomials multiplied by that number."""
    scale = lcm(*(c.denominator for part in parts for c in part.values()))
    return scale, [tuple(sorted((m, int(c * scale)) for m, c in part.items())) for part in parts]


@dataclass(frozen=True, slots=True)
class Quotient:
    """A cost compiled for evaluation, as integer polynomial / (integer x monomial)."""

    terms: tuple[tuple[Monomial, int], ...]
    divisor: int
    under: Monomial


def as_quotient(polynomial: Polynomial) -> Quotient:
    """Return a polynomial over its least common denominator."""
    under = _clearing([polynomial])
    scale, (terms,) = _integers([multiply(polynomial, {under: Fraction(1)})])
    return Quotient(terms, scale, under)
