"""Compute exactly with sizes that are integers or sympy polynomials.

Symbolic results are expanded, so that equal sizes compare equal and sums stay small; expansions are memoized.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import sympy

from costproof.algebra.symbols import pulled_out
from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.graph import Size, Value


def prod(factors: Iterable[Size]) -> Size:
    """Return the product of sizes, as an ``int`` if it is constant."""
    return _prod(tuple(factors))


@lru_cache(maxsize=65536)
def _prod(factors: tuple[Size, ...]) -> Size:
    if all(type(f) is int for f in factors):
        return math.prod(factors)
    return tidy(sympy.Mul(*factors))


def total(terms: Iterable[Size]) -> Size:
    """Return the sum of sizes, as an ``int`` if it is constant."""
    whole = 0
    symbolic: list[sympy.Expr] = []
    for term in terms:
        if isinstance(term, int):
            whole += term
        else:
            symbolic.append(term)
    return whole if not symbolic else tidy(sympy.Add(whole, *symbolic))


@lru_cache(maxsize=65536)
def tidy(size: Size) -> Size:
    """Return the expanded form of a size, as an ``int`` if it is constant."""
    if isinstance(size, int):
        return size
    expanded = sympy.expand(size)
    return int(expanded) if expanded.is_Integer else expanded


def numel(value: Value) -> Size:
    """Return the number of elements of a tensor."""
    return _prod(value.shape)


def broadcast(a: tuple[Size, ...], b: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return the broadcast shape of two tensors."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    ahead = len(longer) - len(shorter)
    return (*longer[:ahead], *(y if x == 1 else x for x, y in zip(longer[ahead:], shorter, strict=True)))


def nbytes(value: Value) -> Size:
    """Return the bytes of a tensor in its own dtype."""
    return _prod((*value.shape, ITEM_BYTES[value.dtype]))


def smaller(a: Size, b: Size) -> Size:
    """Return the smaller of two sizes; ``Min`` remains only if the order depends on the symbols' values."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if a == b:
        return a
    return _smaller(a, b)


@lru_cache(maxsize=4096)
def _smaller(a: Size, b: Size) -> Size:
    sign = _sign(tidy(a - b))
    if sign is None:
        return pulled_out(sympy.Min(a, b))
    return b if sign > 0 else a


def never_negative(size: Size) -> bool:
    """Return whether a size is certainly at least 0 for symbols >= 1."""
    return _sign(size) == 1


@lru_cache(maxsize=4096)
def _sign(difference: Size) -> int | None:
    """Return 1 if a difference of sizes is never negative for symbols >= 1, -1 if never positive, else ``None``.

    With every symbol written as t + 1, t >= 0, a polynomial whose coefficients all have one sign has that sign.
    """
    if isinstance(difference, int):
        return 1 if difference >= 0 else -1
    symbols = sorted(difference.free_symbols, key=str)
    shifted = sympy.expand(difference.subs({s: s + 1 for s in symbols}, simultaneous=True))
    if not shifted.is_polynomial(*symbols):
        return None
    coefficients = sympy.Poly(shifted, *symbols).coeffs()
    if all(c >= 0 for c in coefficients):
        return 1
    return -1 if all(c <= 0 for c in coefficients) else None


def in_numbers(size: Size) -> int:
    """Return the value of a size at 60 for every symbol, so that divisions by small factors have no remainder."""
    return size if isinstance(size, int) else int(size.subs(dict.fromkeys(size.free_symbols, 60)))
