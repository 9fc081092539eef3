"""Find finite lists of values at which equality of two piecewise formulas proves that they are identical.

A formula of one variable with minima, maxima and roundings is a polynomial between two neighbouring branch boundaries,
for the values with one remainder modulo the period of the roundings. Two polynomials of degree d are identical if they
agree at d + 1 values. A finite list of values therefore decides whether two such formulas are identical. For several
variables, the grid of their lists decides, provided that each minimum, maximum or rounding depends on one variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import combinations, product
from math import ceil, floor, lcm
from typing import Final

import sympy

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.symbols import FUNCTIONS, pulled_out, sym, text

PIECEWISE: Final = tuple(FUNCTIONS.values())
_ROUNDINGS: Final = (sympy.floor, sympy.ceiling)
_MOST_PERIOD: Final = 512
_MOST_BRANCHES: Final = 64
_MOST_VALUES: Final = 4_096

_Polynomial = tuple[Fraction, ...]
"""Coefficients of a polynomial in one variable, in ascending order of powers."""


class NotDecided(Exception):
    """Raised if no finite list of values is known that would decide whether formulas are identical."""


def piecewise(expr: sympy.Expr) -> bool:
    """Return whether an expression contains a minimum, maximum or rounding."""
    return bool(expr.atoms(*PIECEWISE))


def opaque(expr: sympy.Expr, names: dict[str, sympy.Symbol]) -> sympy.Expr:
    """Replace each ``Min``, ``Max``, ``ceiling`` and ``floor`` by a fresh symbol, equal terms by the same symbol.

    Args:
        names: symbols by canonical text of what they replace; new symbols are added.
    """
    if isinstance(expr, PIECEWISE):
        whole = pulled_out(expr.func(*(sympy.expand(a) for a in expr.args)))
        factor, left = whole.as_coeff_Mul()
        if not isinstance(left, PIECEWISE):
            return whole
        return factor * names.setdefault(text(left), sym(f"_piece{len(names)}"))
    return expr.func(*(opaque(a, names) for a in expr.args)) if expr.args else expr


def deciding(
    exprs: Iterable[sympy.Expr], name: str, first: int = 1, step: int = 1, breaks: Iterable[int] = ()
) -> tuple[int, ...]:
    """Return values of a variable such that two formulas that agree at all of them agree everywhere.

    Args:
        exprs: the terms of both formulas.
        name: the variable.
        first: the smallest value of the variable.
        step: the step between its values.
        breaks: values from which other formulas apply.

    Raises:
        NotDecided: no such list is known, or it is too long.
    """
    axis = _Axis(sym(name), first, step)
    whole = list(exprs)
    choices = {a for e in whole for a in e.atoms(sympy.Min, sympy.Max) if a.has(axis.variable)}
    roundings = {a for e in whole for a in e.atoms(*_ROUNDINGS) if a.has(axis.variable)}
    if any(a.free_symbols != {axis.variable} for a in choices | roundings):
        raise NotDecided
    period = lcm(1, *(axis.period(a)[1] for a in roundings))
    block = period * (1 + max((axis.degree(e) for e in whole), default=0))
    if block > _MOST_VALUES or period > _MOST_PERIOD:
        raise NotDecided
    starts = {0, *(max(0, -((first - at) // step)) for at in breaks)}
    for choice in choices:
        for rest in range(period):
            for a, b in combinations(choice.args, 2):
                for one, other in product(axis.branches(a, rest, period), axis.branches(b, rest, period)):
                    starts |= {period * k + rest for k in _crossings(_add(one, _times(other, (Fraction(-1),))))}
    # Each boundary lies between one of these numbers and the next; the block of values after it is a single piece.
    places = sorted({i for at in starts for i in range(max(0, at - 2 * period), at + period + block) if i >= 0})
    if len(places) > _MOST_VALUES:
        raise NotDecided
    return tuple(first + step * i for i in places)


class _Axis:
    """An integer variable ``first + step*i``, to analyse expressions as functions of i."""

    def __init__(self, variable: sympy.Symbol, first: int, step: int) -> None:
        self.variable, self.first, self.step = variable, first, step

    def degree(self, expr: sympy.Expr) -> int:
        """Return an upper bound of the degree in i of the polynomials that a piecewise expression consists of."""
        if not expr.has(self.variable):
            return 0
        if expr.is_Symbol:
            return 1
        if expr.is_Pow:
            if not expr.exp.is_Integer or expr.exp < 0:
                raise NotDecided
            return int(expr.exp) * self.degree(expr.base)
        degrees = [self.degree(a) for a in expr.args]
        return sum(degrees) if expr.is_Mul else max(degrees)

    def period(self, expr: sympy.Expr) -> tuple[Fraction, int]:
        """Return the slope of a rounded linear expression per i, and the period in i of its rounding steps."""
        if not expr.has(self.variable):
            if not expr.is_Rational:
                raise NotDecided
            return Fraction(0), 1
        if expr.is_Symbol:
            return Fraction(self.step), 1
        if expr.is_Mul and expr.args[0].is_Rational and len(expr.args) == 2:
            slope, period = self.period(expr.args[1])
            return slope * Fraction(int(expr.args[0].p), int(expr.args[0].q)), period
        if expr.is_Add:
            parts = [self.period(a) for a in expr.args]
            return sum((s for s, _ in parts), Fraction(0)), lcm(*(p for _, p in parts))
        if isinstance(expr, _ROUNDINGS):
            slope, period = self.period(expr.args[0])
            period *= (slope * period).denominator
            if period > _MOST_PERIOD:
                raise NotDecided
            return slope, period
        raise NotDecided

    def branches(self, expr: sympy.Expr, rest: int, period: int) -> set[_Polynomial]:
        """Return the polynomials in k that a piecewise expression may equal at i = period*k + rest."""
        if expr.is_Rational:
            return {_trimmed((Fraction(int(expr.p), int(expr.q)),))}
        if expr.is_Symbol:
            return {(Fraction(self.first + self.step * rest), Fraction(self.step * period))}
        if isinstance(expr, _ROUNDINGS):
            at = compile_expression(expr).run({str(self.variable): self.first + self.step * rest})
            return {_trimmed((Fraction(at), self.period(expr)[0] * period))}
        parts = [self.branches(a, rest, period) for a in (expr.args[:1] if expr.is_Pow else expr.args)]
        if isinstance(expr, sympy.Min | sympy.Max):
            found = set[_Polynomial]().union(*parts)
        elif expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            found = parts[0]
            for _ in range(int(expr.exp) - 1):
                found = _each(_times, found, parts[0])
        elif expr.is_Add or expr.is_Mul:
            found = parts[0]
            for more in parts[1:]:
                found = _each(_add if expr.is_Add else _times, found, more)
        else:
            raise NotDecided
        return found


def _each(
    how: Callable[[_Polynomial, _Polynomial], _Polynomial], one: set[_Polynomial], other: set[_Polynomial]
) -> set[_Polynomial]:
    if len(one) * len(other) > _MOST_BRANCHES:
        raise NotDecided
    return {how(a, b) for a, b in product(one, other)}


def _add(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    size = max(len(a), len(b))
    wide = [(*p, *[Fraction(0)] * (size - len(p))) for p in (a, b)]
    return _trimmed(x + y for x, y in zip(*wide, strict=True))


def _times(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    found = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + j] += x * y
    return _trimmed(found)


def _trimmed(coefficients: Iterable[Fraction]) -> _Polynomial:
    found = list(coefficients)
    while len(found) > 1 and not found[-1]:
        found.pop()
    return tuple(found)


def _crossings(p: _Polynomial) -> set[int]:
    """Return the non-negative integers just below and above each zero of a polynomial."""
    if len(p) < 2:
        return set()
    if len(p) == 2:
        zeros = [(-p[0] / p[1], -p[0] / p[1])]
    else:
        poly = sympy.Poly([sympy.Rational(c.numerator, c.denominator) for c in reversed(p)], sym("k"))
        found = (ends for ends, _ in poly.intervals(eps=sympy.Rational(1, 4)))
        zeros = [(Fraction(int(a.p), int(a.q)), Fraction(int(b.p), int(b.q))) for a, b in found]
    return {k for low, high in zeros for k in range(floor(low), ceil(high) + 1) if k >= 0}


def grid(lists: Mapping[str, Iterable[int]], most: int) -> Iterable[dict[str, int]]:
    """Return all combinations of the values of several variables.

    Raises:
        NotDecided: there are more than ``most``.
    """
    whole = {name: tuple(values) for name, values in lists.items()}
    count = 1
    for values in whole.values():
        count *= len(values)
    if count > most:
        raise NotDecided
    return (dict(zip(whole, values, strict=True)) for values in product(*whole.values()))
