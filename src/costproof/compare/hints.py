"""What a wrong formula looks like: hints for the person who corrects it. They explain nothing away."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement
from math import prod

import sympy

from costproof.algebra.identity import at, free_symbols
from costproof.algebra.symbols import parse, text

_MOST = 3


def hint(value: int, expected: int, exprs: tuple[str, ...] | None, values: Mapping[str, int]) -> str:
    """One sentence on how ``value`` may have come about where ``expected`` was right.

    Args:
        exprs: the formula that gave the value, as a sum of expressions.
        values: values of the symbols at this workload.
    """
    if value == 0:
        return "missing: no formula counts this"
    if expected == 0:
        return "extra: the formula counts what no graph has"
    if term := _term(value - expected, exprs, values):
        return f"extra term {term}?"
    ratio = Fraction(value, expected)
    if ratio == Fraction(1, 2):
        return "factor 1/2 (a multiply-accumulate counted as one operation, or a sum over one of two?)"
    if ratio.numerator <= 4 and ratio.denominator <= 4:
        return f"factor {ratio}"
    if swaps := _swaps(ratio, exprs, values):
        return "wrong dimension: " + " or ".join(swaps) + "?"
    if product := _product(expected - value, values):
        return f"{'missing' if expected > value else 'extra'} term of the size {product}?"
    return f"value/expected = {ratio}" if ratio.denominator < 10_000 else "wrong by the amount"


def _term(amount: int, exprs: tuple[str, ...] | None, values: Mapping[str, int]) -> str | None:
    for expression in exprs or ():
        for term in _terms(expression):
            if at((text(term),), values) == amount:
                return text(term)
    return None


@lru_cache(maxsize=1024)
def _terms(expression: str) -> tuple[sympy.Expr, ...]:
    terms = sympy.Add.make_args(sympy.expand(parse(expression)))
    return tuple(terms) if len(terms) > 1 else ()


def _swaps(ratio: Fraction, exprs: tuple[str, ...] | None, values: Mapping[str, int]) -> list[str]:
    used = sorted({name for e in exprs or () for name in free_symbols(e)})
    found = [
        f"{wrong} in place of {right}"
        for wrong in used
        for right in sorted(values)
        if right != wrong and _family(right) == _family(wrong) and values.get(wrong)
        if values[right] and Fraction(values[wrong], values[right]) == ratio
    ]
    return found[:_MOST]


def _family(name: str) -> str:
    prefix, _, rest = name.partition("_")
    return prefix if rest else ""


def _product(amount: int, values: Mapping[str, int]) -> str | None:
    """A product of up to three symbols and a small factor that is the amount, if there is just one."""
    names = sorted(n for n, v in values.items() if v > 2 and amount % v == 0)
    found = []
    for size in (1, 2, 3):
        for group in combinations_with_replacement(names, size):
            factor, rest = divmod(abs(amount), prod(values[name] for name in group))
            if rest == 0 and factor in (1, 2, 4):
                found.append("*".join((*(() if factor == 1 else (str(factor),)), *group)))
        if found:
            return found[0] if len(found) == 1 else None
    return None
