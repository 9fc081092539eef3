"""Numbers for symbols: a symbolic ledger at one workload, in exact integers.

Equal layers have equal expressions, so a ledger of a thousand nodes has a few dozen different ones;
each is read and computed once per set of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor

import sympy

from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.symbols import parse

Values = Mapping[str, int]


def evaluate_ledger(
    ledger: Ledger, values_by_invocation: Mapping[tuple[str, str], Values], config_values: Values
) -> Ledger:
    """The ledger with ``costs`` filled from ``exprs``; costs without an expression stay as they are.

    Args:
        values_by_invocation: (stage, invocation id) -> values of the workload's symbols there.
        config_values: values of the configuration's symbols, everywhere; stage-wide metrics see
            these, and of the workload's symbols those that have one value in all invocations.

    Raises:
        BadInput: a symbol has no value, or a cost is no integer.
    """
    common = _common(values_by_invocation.values())
    known: dict[tuple[str, str], dict[str, int]] = {}
    cache: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
    nodes: list[CostNode] = []
    for node in ledger.nodes:
        if not node.exprs:
            nodes.append(node)
            continue
        place = (node.stage, node.invocation)
        if place not in known:
            known[place] = {**config_values, **(values_by_invocation.get(place, {}) if node.invocation else common)}
        costs: dict[Metric, int | None] = dict(node.costs)
        for metric, source in node.exprs.items():
            costs[metric] = _cached(source, known[place], cache, node.id)
        nodes.append(replace(node, costs=costs))
    return replace(ledger, nodes=tuple(nodes))


def evaluate_expr(expr: sympy.Expr, values: Values) -> int:
    """The integer that an expression of the ledger's grammar takes at ``values``.

    Raises:
        BadInput: a symbol has no value, or the result is no integer.
    """
    result = _value(expr, values)
    if result.denominator != 1:
        raise BadInput("an expression is no integer at this workload", where=str(expr), got=result)
    return int(result)


def _cached(
    source: str,
    values: Values,
    cache: dict[tuple[str, tuple[tuple[str, int], ...]], int],
    where: str,
) -> int:
    expr = parse(source)
    names = sorted(s.name for s in expr.free_symbols)
    missing = [n for n in names if n not in values]
    if missing:
        raise BadInput(
            "a cost has symbols without a value",
            where=where,
            expected="values for " + ", ".join(missing),
            got="values for " + ", ".join(sorted(values)),
        )
    key = (source, tuple((n, values[n]) for n in names))
    if key not in cache:
        try:
            cache[key] = evaluate_expr(expr, values)
        except BadInput as error:
            error.where = where
            raise
    return cache[key]


def _common(all_values: object) -> dict[str, int]:
    """Symbols that have the same value wherever they occur."""
    found: dict[str, int] = {}
    clashing: set[str] = set()
    for values in all_values:  # type: ignore[attr-defined]
        for name, value in values.items():
            if found.setdefault(name, value) != value:
                clashing.add(name)
    return {n: v for n, v in found.items() if n not in clashing}


def _value(expr: sympy.Expr, values: Values) -> Fraction:
    if expr.is_Symbol:
        try:
            return Fraction(values[expr.name])
        except KeyError:
            raise BadInput("an expression has a symbol without a value", where=expr.name) from None
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    args = [_value(a, values) for a in expr.args]
    if expr.is_Add:
        return sum(args, Fraction(0))
    if expr.is_Mul:
        product = Fraction(1)
        for a in args:
            product *= a
        return product
    if expr.is_Pow and args[1].denominator == 1:
        if args[0] == 0 and args[1] < 0:
            raise BadInput("an expression divides by zero at this workload", where=str(expr))
        return args[0] ** int(args[1])
    if isinstance(expr, sympy.floor):
        return Fraction(floor(args[0]))
    if isinstance(expr, sympy.ceiling):
        return Fraction(ceil(args[0]))
    if isinstance(expr, sympy.Min):
        return min(args)
    if isinstance(expr, sympy.Max):
        return max(args)
    raise BadInput("an expression has a function that has no integer value", where=str(expr))
