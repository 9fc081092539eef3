"""Whether two formulas are the same, not only equal at one workload; and by what they differ.

Equality is tested at four points with the exact arithmetic of Python's integers and fractions;
two different polynomials of the degrees that occur here agree at such points with a chance below
one in a million (Schwartz-Zippel lemma). Sympy is asked only for the difference of formulas that are
not the same, because it is a thousand times slower.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

import sympy

from costproof.ledger.errors import BadInput
from costproof.ledger.symbols import parse, sym, text

Number = int | Fraction
Program = Callable[[Mapping[str, Number]], Number]

_POINTS = ((1, 4), (2, 97), (101, 4_993), (10_007, 1_000_003))
"""Ranges of the points: tiny and small sizes, where a minimum takes its other branch, and large ones."""


@lru_cache(maxsize=65536)
def free_symbols(expression: str) -> frozenset[str]:
    """Names of the symbols in an expression."""
    return _compiled(expression)[1]


def at(expressions: Iterable[str], values: Mapping[str, int]) -> Number | None:
    """The value of a sum of expressions; ``None`` if a symbol has no value or a divisor is 0."""
    total: Number = 0
    try:
        for expression in expressions:
            total += _compiled(expression)[0](values)
    except (KeyError, ZeroDivisionError):
        return None
    return total


def points(free: frozenset[str]) -> tuple[dict[str, int], ...]:
    """Four values for each symbol: the same on every machine and in every run."""
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
    """Whether two sums of expressions agree wherever the ``free`` symbols lead.

    Args:
        fixed: values of the symbols that are no variables here: those of the configuration, and
            those of the workload that the second side holds as numbers.
        alias: symbols that always equal a free one.
    """
    base = dict(fixed)
    for point in points(free):
        values = {**base, **point, **{name: point[equal] for name, equal in alias}}
        a, b = at(first, values), at(second, values)
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
    """First minus second with the fixed symbols put in, factored, as canonical text."""
    replaced: dict[sympy.Expr, sympy.Expr] = {sym(k): sympy.Integer(v) for k, v in fixed}
    replaced.update({sym(k): sym(v) for k, v in alias})
    total = sympy.Integer(0)
    for sign, side in ((1, first), (-1, second)):
        for expression in side:
            total += sign * parse(expression).subs(replaced)
    expanded = sympy.expand(total)
    return text(sympy.factor(expanded)) if expanded.is_polynomial() else text(expanded)


@lru_cache(maxsize=65536)
def _compiled(expression: str) -> tuple[Program, frozenset[str]]:
    names: set[str] = set()
    program = _build(parse(expression), names)
    return program, frozenset(names)


def _build(node: sympy.Expr, names: set[str]) -> Program:
    """A closure that evaluates an expression with exact numbers."""
    if node.is_Integer:
        number = int(node)
        return lambda _: number
    if node.is_Rational:
        ratio = Fraction(int(node.p), int(node.q))
        return lambda _: ratio
    if node.is_Symbol:
        name = str(node.name)
        names.add(name)
        return lambda values: values[name]
    parts = [_build(a, names) for a in node.args]
    if node.is_Add:
        return lambda values: sum(p(values) for p in parts)
    if node.is_Mul:
        return lambda values: _product(p(values) for p in parts)
    if node.is_Pow and node.exp.is_Integer:
        base, exponent = parts[0], int(node.exp)
        return lambda values: Fraction(base(values)) ** exponent if exponent < 0 else base(values) ** exponent
    one = parts[0]
    match type(node):
        case sympy.floor:
            return lambda values: floor(one(values))
        case sympy.ceiling:
            return lambda values: ceil(one(values))
        case sympy.Min:
            return lambda values: min(p(values) for p in parts)
        case sympy.Max:
            return lambda values: max(p(values) for p in parts)
    raise BadInput("an expression holds a function that cannot be evaluated", where=text(node))


def _product(numbers: Iterable[Number]) -> Number:
    result: Number = 1
    for number in numbers:
        result = result * number
    return result
