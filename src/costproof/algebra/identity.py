"""Test whether two formulas are equal at all sizes, not just at one workload, or one never exceeds the other.

Equality is tested at four points in exact integers and fractions; two different polynomials of the degrees that occur
in practice agree at all of them with a probability below one in a million (Schwartz-Zippel lemma). Formulas with a
minimum, maximum or rounding that the other side lacks are also compared around their branches
(:mod:`costproof.algebra.piecewise`). Sympy, which is a thousand times slower, is used only for these, and for the
difference of formulas that are not identical.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

import sympy

from costproof.algebra.evaluation import ExactNumber, compile_expression
from costproof.algebra.piecewise import NotDecided, deciding, opaque
from costproof.algebra.symbols import FUNCTIONS, factored, parse, sym, text
from costproof.ledger.time_limits import check_time

_POINTS = ((1, 4), (2, 97), (101, 4_993), (10_007, 1_000_003))
"""Ranges of the sizes at which formulas are compared: tiny and small sizes, where minima may change, and large ones."""
_USUAL: Final = tuple(sorted({*range(1, 65), *(2**i + k for i in range(6, 21) for k in (-1, 0, 1))}))
"""Values to compare formulas at for a symbol whose branch boundaries are unknown."""


@lru_cache(maxsize=65536)
def free_symbols(expression: str) -> frozenset[str]:
    """Return the names of the symbols in an expression."""
    return compile_expression(expression).symbols


def at(expressions: Iterable[str], values: Mapping[str, int]) -> ExactNumber | None:
    """Return the value of a sum of expressions at these symbol values; ``None`` if one is missing or a divisor is 0."""
    check_time()
    total: ExactNumber = 0
    try:
        for expression in expressions:
            total += compile_expression(expression).run(values)
    except (KeyError, ZeroDivisionError):
        return None
    return total


@lru_cache(maxsize=4096)
def unrounded(expression: str) -> str:
    """Replace each ceiling by its argument: return the cost without padding to whole windows."""
    return text(parse(expression).replace(sympy.ceiling, lambda inside: inside))


def points(free: frozenset[str]) -> tuple[dict[str, int], ...]:
    """Return four assignments of pseudo-random values to the symbols, the same on every machine and in every run."""
    return tuple(
        {name: low + zlib.crc32(f"{i}:{name}".encode()) % (high - low) for name in free}
        for i, (low, high) in enumerate(_POINTS)
    )


@lru_cache(maxsize=65536)
def same(
    first: tuple[str, ...],
    second: tuple[str, ...],
    fixed: tuple[tuple[str, int], ...],
    alias: tuple[tuple[str, str], ...],
    free: frozenset[str],
) -> bool:
    """Return whether two sums of expressions are equal for all values of the ``free`` symbols.

    Args:
        fixed: (symbol, value) for the symbols that do not vary: those of the configuration, and those of the workload
            for which the second sum contains numbers.
        alias: (symbol, free symbol that it always equals).
        free: the symbols that vary.
    """
    base = dict(fixed)
    for point in points(free):
        values = {**base, **point, **{name: point[equal] for name, equal in alias}}
        a, b = at(first, values), at(second, values)
        if a is None or b is None or a != b:
            return False
    if not any(map(branches, (*first, *second))):
        return True
    one, other = ([parse(put_in(e, fixed, alias)) for e in side] for side in (first, second))
    return same_pieces(one, other, free) or _same_around(one, other, free)


def branches(expression: str) -> bool:
    """Return whether an expression is piecewise: whether it contains a minimum, a maximum, a floor or a ceiling."""
    return any(f"{name}(" in expression for name in FUNCTIONS)


def same_pieces(first: Iterable[sympy.Expr], second: Iterable[sympy.Expr], free: Iterable[str]) -> bool:
    """Return whether two sums are equal as polynomials in which each minimum, maximum and rounding is a variable."""
    names: dict[str, sympy.Symbol] = {}
    one, other = (tuple(text(opaque(e, names)) for e in side) for side in (first, second))
    known = frozenset(free) | {n.name for n in names.values()}
    return all(at(one, values) == at(other, values) is not None for values in points(known))


def _same_around(first: list[sympy.Expr], second: list[sympy.Expr], free: frozenset[str]) -> bool:
    """Return whether two sums of piecewise expressions agree at values around their branch boundaries."""
    for name in free:
        try:
            values = deciding((*first, *second), name)
        except NotDecided:
            values = _USUAL
        for other in points(free):
            for value in values:
                place = {**other, name: value}
                a, b = (at((text(e) for e in side), place) for side in (first, second))
                if a is None or b is None or a != b:
                    return False
    return True


@lru_cache(maxsize=4096)
def difference(
    first: tuple[str, ...],
    second: tuple[str, ...],
    fixed: tuple[tuple[str, int], ...],
    alias: tuple[tuple[str, str], ...],
) -> str:
    """Return first minus second as factored canonical text, with the values of the fixed symbols substituted."""
    mine, theirs = (sympy.Add(*(parse(put_in(e, fixed, alias)) for e in side)) for side in (first, second))
    return text(factored(mine - theirs))


@lru_cache(maxsize=65536)
def put_in(expression: str, fixed: tuple[tuple[str, int], ...], alias: tuple[tuple[str, str], ...]) -> str:
    """Substitute numbers and other names for symbols, and return the expanded expression as canonical text."""
    wanted = free_symbols(expression)
    replaced: dict[sympy.Expr, sympy.Expr] = {sym(k): sympy.Integer(v) for k, v in fixed if k in wanted}
    replaced.update({sym(k): sym(v) for k, v in alias if k in wanted})
    return text(sympy.expand(parse(expression).subs(replaced)))


Factors = tuple[tuple[sympy.Expr, int], ...]
"""A product of powers, as (base, exponent) pairs; a base is a symbol or another expression, such as a maximum."""
Terms = Mapping[Factors, ExactNumber]
"""An expanded sum: the coefficient of each product."""


@lru_cache(maxsize=8192)
def terms_of(size: sympy.Expr | int) -> Terms:
    """Return the expanded expression as a mapping from products of symbols to their coefficients."""
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
    """Remove the sums that another sum equals or exceeds at all sizes; of equal sums keep the first."""
    values: dict[sympy.Expr, tuple[int, ...]] = {}

    def at_samples(terms: Terms) -> tuple[ExactNumber, ...]:
        """Return the sum at three values of its bases, which :func:`at_least` takes as independent."""
        found: list[ExactNumber] = [0, 0, 0]
        for of, n in terms.items():
            products = [n, n, n]
            for base, power in of:
                each = values.setdefault(base, (1, 1000, 2 + 7 * len(values)))
                products = [product * value**power for product, value in zip(products, each, strict=True)]
            found = [total + product for total, product in zip(found, products, strict=True)]
        return tuple(found)

    def exceeds(one: tuple[Terms, tuple[ExactNumber, ...]], other: tuple[Terms, tuple[ExactNumber, ...]]) -> bool:
        # A sum that is less at one sample is not proved to be never less, which the samples show much faster.
        return all(a >= b for a, b in zip(one[1], other[1], strict=True)) and at_least(one[0], other[0])

    found: list[tuple[Terms, tuple[ExactNumber, ...]]] = []
    for terms in {frozenset(terms.items()): terms for terms in sums}.values():
        one = terms, at_samples(terms)
        if not any(exceeds(other, one) for other in found):
            found = [other for other in found if not exceeds(one, other)] + [one]
    return [terms for terms, _ in found]


def at_least(one: Terms, other: Terms) -> bool:
    """Return whether one sum is never less than another at sizes >= 1, as far as their coefficients prove it.

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
    """Expand a product after the substitution of x + 1 for each symbol x; return the resulting sum."""
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
    """Return a lower bound of a factor of a product: 1 for a symbol or a ceiling, 0 for any other, such as a floor."""
    return int(base.is_Symbol or base.func is sympy.ceiling)
