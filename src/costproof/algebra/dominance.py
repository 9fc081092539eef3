"""Compare sums of products of sizes for all sizes at once, and drop those that never exceed another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache

import sympy

from costproof.algebra.evaluation import ExactNumber

Factors = tuple[tuple[sympy.Expr, int], ...]
"""A product as (base, power) pairs; a base is a symbol or an expression that is not a product, such as a maximum."""
Terms = Mapping[Factors, ExactNumber]
"""An expanded sum: product -> the coefficient it is multiplied by."""


@lru_cache(maxsize=8192)
def terms_of(size: sympy.Expr | int) -> Terms:
    """Return an expression as an expanded sum: product of symbols -> coefficient."""
    found = sympy.expand(size).as_coefficients_dict()
    return {_factors(term): int(n) if n.is_Integer else Fraction(int(n.p), int(n.q)) for term, n in found.items() if n}


def _factors(term: sympy.Expr) -> Factors:
    if term.is_number:
        return ()
    powers = term.as_powers_dict()
    plain = all(power.is_Integer and power > 0 for power in powers.values())
    return tuple(sorted(((base, int(power)) for base, power in powers.items()), key=str)) if plain else ((term, 1),)


def expression_of(terms: Terms) -> sympy.Expr:
    """Return the sympy expression of a mapping of products to coefficients, the inverse of :func:`terms_of`."""
    return sympy.Add(*(sympy.Rational(n.numerator, n.denominator) * _product(of) for of, n in terms.items()))


def _product(of: Factors) -> sympy.Expr:
    return sympy.Mul(*(base**power for base, power in of))


def undominated(sums: Iterable[Terms]) -> list[Terms]:
    """Return the sums for which no other sum is at least as large at all sizes; of equal ones the first."""
    found: list[Terms] = []
    for one in {frozenset(terms.items()): terms for terms in sums}.values():
        if not any(at_least(other, one) for other in found):
            found = [other for other in found if not at_least(one, other)] + [one]
    return found


def at_least(one: Terms, other: Terms) -> bool:
    """Return whether one sum is never less than another, by their coefficients with every symbol >= 1.

    A sum is not negative if its coefficients are not, or if they are not once each symbol x is replaced by x + 1.
    """
    more = {of: n for of in {*one, *other} if (n := one.get(of, 0) - other.get(of, 0))}
    if all(n > 0 for n in more.values()):
        return True
    if all(n < 0 for n in more.values()):
        return False
    shifted: dict[Factors, ExactNumber] = {}
    for of, n in more.items():
        for product, factor in _shifted(of):
            shifted[product] = shifted.get(product, 0) + n * factor
    return all(n >= 0 for n in shifted.values())


@lru_cache(maxsize=8192)
def _shifted(of: Factors) -> tuple[tuple[Factors, int], ...]:
    """Return the sum of products that a product becomes when each symbol x is replaced by x + 1."""
    return tuple(_expansion(of))


def _expansion(of: Factors) -> Iterator[tuple[Factors, int]]:
    if not of:
        yield (), 1
        return
    (base, power), *rest = of
    least = _least(base)
    for product, factor in _expansion(tuple(rest)):
        for k in range(power + 1):
            ways = int(sympy.binomial(power, k)) * least ** (power - k)
            if ways:
                yield (((base, k), *product) if k else product), factor * ways


def _least(base: sympy.Expr) -> int:
    """Return the least value of a factor: 1 for symbols and ceilings, 0 where rounding down allows it."""
    return int(base.is_Symbol or base.func is sympy.ceiling)
