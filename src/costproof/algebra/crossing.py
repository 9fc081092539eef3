"""Find the first integer at which a formula of one variable is positive.

Linear and quadratic polynomials are solved by their roots, in integers. A formula with minima and maxima is split into
pieces on which each selects one of its arguments; the boundaries between pieces are found in the same manner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import isqrt, lcm
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sympy

FAR: Final = 10**18
"""The largest integer considered, above any batch size or length; a crossing beyond it does not count."""
_MOST_PIECES: Final = 64


class NotSolved(Exception):
    """Raised for a formula that this module cannot solve; the message gives the reason."""


def first_above(expr: sympy.Expr, variable: sympy.Symbol, start: int = 1) -> int | None:
    """Return the first integer from ``start`` on at which ``expr`` is above 0; ``None`` if there is none.

    Args:
        expr: a polynomial in the variable of degree at most two, with rational coefficients; it may contain minima
            and maxima of polynomials of this kind.
        variable: the variable.
        start: the smallest integer considered.

    Raises:
        NotSolved: the expression has another form.
    """
    for low, high, coefficients in _pieces(expr, variable, start, FAR):
        found = _first(coefficients, low, high)
        if found is not None:
            return found
    return None


def _pieces(
    expr: sympy.Expr, variable: sympy.Symbol, low: int, high: int
) -> Iterator[tuple[int, int, tuple[Fraction, Fraction, Fraction]]]:
    """Yield (first integer, last integer, coefficients) of each range on which the expression is one polynomial."""
    import sympy

    choices = [a for a in expr.atoms(sympy.Min, sympy.Max) if not any(b.atoms(sympy.Min, sympy.Max) for b in a.args)]
    choices = sorted((a for a in choices if a.has(variable)), key=sympy.default_sort_key)
    if not choices:
        yield low, high, _coefficients(expr, variable)
        return
    choice = choices[0]
    here = low
    for _ in range(_MOST_PIECES):
        # Find the argument selected here, and the point from which another is selected.
        better = (lambda x, y: x < y) if isinstance(choice, sympy.Min) else (lambda x, y: x > y)
        taken = _taken(choice.args, variable, here, better)
        sign = 1 if isinstance(choice, sympy.Min) else -1
        ends = (first_above(sign * (taken - other), variable, here) for other in choice.args if other != taken)
        end = min((e for e in ends if e is not None), default=high + 1)
        last = min(high, end - 1)
        yield from _pieces(expr.xreplace({choice: taken}), variable, here, last)
        if last == high:
            return
        here = end
    raise NotSolved("a minimum changes too often")


def _taken(
    arguments: tuple[sympy.Expr, ...], variable: sympy.Symbol, at: int, better: Callable[[Fraction, Fraction], bool]
) -> sympy.Expr:
    """Return the argument that a Min or Max equals at an integer; on a tie, the one that it equals at the next."""
    found = arguments[0]
    for other in arguments[1:]:
        here, there = (_value(_coefficients(a, variable), at) for a in (found, other))
        next_here, next_there = (_value(_coefficients(a, variable), at + 1) for a in (found, other))
        if better(there, here) or (there == here and better(next_there, next_here)):
            found = other
    return found


def _coefficients(expr: sympy.Expr, variable: sympy.Symbol) -> tuple[Fraction, Fraction, Fraction]:
    """Return the coefficients (a, b, c) of an expression a x^2 + b x + c in the variable."""
    import sympy

    try:
        poly = sympy.Poly(expr, variable, domain=sympy.QQ)
    except sympy.PolynomialError:
        raise NotSolved(f"not a polynomial of {variable}") from None
    if poly.degree() > 2:
        raise NotSolved(f"a polynomial of degree {poly.degree()}")
    a, b, c = (Fraction(int(k.p), int(k.q)) for k in (poly.coeff_monomial(variable**n) for n in (2, 1, 0)))
    return a, b, c


def _value(coefficients: tuple[Fraction, Fraction, Fraction], at: int) -> Fraction:
    a, b, c = coefficients
    return (a * at + b) * at + c


def _first(coefficients: tuple[Fraction, Fraction, Fraction], low: int, high: int) -> int | None:
    """Return the first integer of a range at which a polynomial is above 0; ``None`` if there is none."""
    if low > high:
        return None
    if _value(coefficients, low) > 0:
        return low
    scale = lcm(*(k.denominator for k in coefficients))
    a, b, c = (int(k * scale) for k in coefficients)
    if a == 0:
        if b <= 0:
            return None
        found = -c // b + 1
        return found if found <= high else None
    # The value at the start is not positive. A parabola that opens upwards is positive above its larger root, one that
    # opens downwards between its roots.
    discriminant = b * b - 4 * a * c
    if discriminant < 0:
        return None
    root = isqrt(discriminant)
    guess = (-b + root) // (2 * a) if a > 0 else (b - root) // (-2 * a)
    # A square root that is not an integer lies within 1 of the result of isqrt.
    nearby = range(max(low, guess - 2), min(high, guess + 3) + 1)
    return next((x for x in nearby if _value(coefficients, x) > 0 and _value(coefficients, x - 1) <= 0), None)
