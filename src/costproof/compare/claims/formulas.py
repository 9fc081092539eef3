"""Claims that are formulas: their value at the workload, and what is left of them in symbols."""

from __future__ import annotations

import sympy

from costproof.compare.claims.items import nodes_of
from costproof.compare.claims.types import TOTAL, Claim, Formula
from costproof.compare.identity import at, difference, free_symbols, points
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.evaluate import evaluate
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import parse
from costproof.ledger.workload import Invocation

_MOST_TERMS = 2_000
"""Beyond, multiplying a formula out would take longer than anybody waits."""


def formula_value(claim: Claim, formula: Formula, capture: Capture) -> int:
    """The claimed number: the formula at the symbols of the claim's invocations.

    A formula with symbols that differ between the invocations (``n``, ``H``) is summed over them; any
    other is evaluated once.

    Raises:
        BadInput: a symbol has no value here, or the result is no integer.
    """
    calls = _calls(claim, capture)
    common = {**capture.target.symbols, **_common(calls)}
    try:
        names = free_symbols(formula.text)
        if names <= common.keys() or not calls:
            return evaluate(formula.text, common)
        return sum(evaluate(formula.text, capture.values(call)) for call in calls if _runs(claim, call, capture))
    except CostproofError as error:
        error.where = f"{claim.where}: {error.where}"
        raise
    except (OverflowError, MemoryError, RecursionError, ValueError):
        raise BadInput("a formula cannot be evaluated", where=claim.where) from None


def _calls(claim: Claim, capture: Capture) -> list[Invocation]:
    return [
        i
        for i in capture.invocations
        if claim.stage in (TOTAL, i.stage) and (not claim.invocation or i.id == claim.invocation)
    ]


def _runs(claim: Claim, call: Invocation, capture: Capture) -> bool:
    """In a claim on all stages a view counts once, not once in every stage that it passes."""
    if claim.stage != TOTAL:
        return True
    first = next(i for i in capture.invocations if i.id == call.id)
    return first.stage == call.stage


def _common(calls: list[Invocation]) -> dict[str, int]:
    found: dict[str, int] = {}
    clashing: set[str] = set()
    for call in calls:
        for name, value in call.symbols.items():
            if found.setdefault(name, value) != value:
                clashing.add(name)
    return {n: v for n, v in found.items() if n not in clashing}


def expression_of_rest(claim: Claim, capture: Capture, ledger: Ledger) -> str | None:
    """Claim minus truth, in the symbols of the workload; ``None`` where the two have no symbols in common.

    ``"0"`` if the two are the same formula.
    """
    calls = _calls(claim, capture)
    stages = {c.stage for c in calls}
    if not isinstance(claim.value, Formula) or len(calls) > 1 or len(stages) > 1:
        return None
    if _terms(parse(claim.value.text)) > _MOST_TERMS:
        return None
    exprs = tuple(n.exprs[claim.metric] for n in nodes_of(ledger, claim, claim.metric) if claim.metric in n.exprs)
    free = frozenset(calls[0].symbols if calls else ())
    alias = ("L", "S") if {"L", "S"} <= free and calls[0].symbols["L"] == calls[0].symbols["S"] else None
    given = (claim.value.text,)
    fixed = tuple(sorted((k, v) for k, v in capture.target.symbols.items()))
    same = all(
        at(given, known) == at(exprs, known)
        for point in points(free)
        for known in [{**capture.target.symbols, **point, **({"L": point["S"]} if alias else {})}]
    )
    if same:
        return "0"
    try:
        return difference(given, exprs, fixed, (alias,) if alias else ())
    except (CostproofError, RecursionError):
        return None


def _terms(expr: sympy.Expr) -> int:
    """A bound on the terms of the expression when it is multiplied out, itself bounded."""
    top = _MOST_TERMS + 1
    if expr.is_Add:
        return min(top, sum(_terms(a) for a in expr.args))
    if expr.is_Mul:
        product = 1
        for factor in expr.args:
            product = min(top, product * _terms(factor))
        return product
    if expr.is_Pow and expr.exp.is_Integer:
        inside = _terms(expr.base)
        return 1 if inside == 1 else int(min(top, inside ** min(abs(int(expr.exp)), 64)))
    return 1
