"""Sum the cost of one decode step over N steps, or the cost of one row over the rows of a batch, in closed form."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import sympy

from costproof.algebra.symbols import sym, text
from costproof.ledger.errors import BadInput

CONTEXT: Final = sym("P")
"""Number of tokens in the cache before the first step."""
STEPS: Final = sym("N")
"""Number of decode steps."""
OF_EACH: Final = sym("of_each")
"""Symbol of 1/N in the cost of a step: its equal part of a number that all steps have together."""
CACHED: Final = sym("C")
"""Number of tokens in the cache before the prefill; the cost has this symbol only if there are any."""
ROW_SIZES: Final = (sym("B_0"), sym("S_0"), sym("C_0"))
"""Symbols of one row of a batch: its number of sequences, and their new and cached tokens each."""
ROW_SUMS: Final = {
    (0, 0, 0): "R", (1, 0, 0): "B", (1, 1, 0): "S", (1, 0, 1): "C", (1, 2, 0): "SS", (1, 1, 1): "SC", (1, 0, 2): "CC",
}  # fmt: skip
"""Prefix of the symbol for a sum over the rows of one kind, by powers of :data:`ROW_SIZES`: ``SC`` in ``SC_1``."""


_NO_SUM: Final = "the cost of a decode step has no closed sum over the steps"
_POLYNOMIAL: Final = f"a polynomial in {CONTEXT}, the number of cached tokens"


@lru_cache(maxsize=4096)
def sum_over_steps(expr: sympy.Expr) -> sympy.Expr:
    """Return the closed form of ``sum(f(P + i) for i in range(N))`` for a polynomial f of P.

    With f(P) = sum over k of c_k P^k, the sum is sum over k of c_k T_k, where T_k = sum over j of binomial(k, j)
    P^(k-j) F_j and F_j = 0^j + 1^j + ... + (N-1)^j is Faulhaber's formula, (B_(j+1)(N) - B_(j+1)(0)) / (j+1) with
    Bernoulli's polynomials. Coefficients c_k may be any expressions without P, functions such as ``Min`` included. So
    may be a term ``c*Min(m, P + k)``, of what grows until it is full: see :func:`_sum_of_least`.

    Raises:
        BadInput: the expression is neither, or already contains N.
    """
    expr = sympy.sympify(expr)
    if STEPS in expr.free_symbols:
        raise BadInput(
            "the cost of one decode step must not depend on the number of steps",
            where=text(expr),
            got=f"the symbol {STEPS}",
        )
    if OF_EACH in expr.free_symbols:
        free = sympy.expand(expr)  # the parts of all steps together are the numbers of which they are parts
        rest, all_steps = free.coeff(OF_EACH, 0), free.coeff(OF_EACH, 1)
        if sympy.expand(free - rest - all_steps * OF_EACH) != 0 or CONTEXT in all_steps.free_symbols:
            raise BadInput(_NO_SUM, where=text(expr), expected=f"linear in {OF_EACH}")
        return sum_over_steps(rest) + all_steps
    if CONTEXT not in expr.free_symbols:
        return STEPS * expr
    expr, full = _apart(expr)
    try:
        powers = sympy.Poly(sympy.expand(expr), CONTEXT).terms()
    except sympy.PolynomialError as error:
        raise BadInput(_NO_SUM, where=text(expr), expected=_POLYNOMIAL, got=str(error)) from error
    if any(CONTEXT in coefficient.free_symbols for _, coefficient in powers):
        raise BadInput(_NO_SUM, where=text(expr), expected=_POLYNOMIAL)
    return full + sympy.Add(*(coefficient * _sum_of_powers(int(monomial[0])) for monomial, coefficient in powers))


def _apart(expr: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Split a cost into (the rest, the closed sum over the steps of its terms ``c*Min(m, P + k)``)."""
    rest, full = sympy.Integer(0), sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.expand(expr)):
        coefficient, growing = term.as_independent(CONTEXT, as_Add=False)
        if isinstance(growing, sympy.Min) and len(growing.args) == 2:
            most, ahead = sorted(growing.args, key=lambda one: CONTEXT in one.free_symbols)
            ahead -= CONTEXT
            if not {*most.free_symbols, *ahead.free_symbols} & {CONTEXT} and ahead.is_nonnegative:
                full += coefficient * _sum_of_least(most, ahead)
                continue
        rest += term
    return rest, full


def _sum_of_least(most: sympy.Expr, ahead: sympy.Expr) -> sympy.Expr:
    """Return the closed form of ``sum(min(most, P + ahead + i) for i in range(N))`` for positive integers.

    The first n integers, none more than m, sum to g(n) = r (r + 1)/2 + m (n - r) with r = min(m, n).
    """

    def until(n: sympy.Expr) -> sympy.Expr:
        r = sympy.Min(most, n)
        return r * (r + 1) / 2 + most * (n - r)

    before = CONTEXT + ahead - 1
    return sympy.expand(until(before + STEPS) - until(before))


def _sum_of_powers(k: int) -> sympy.Expr:
    """Return the closed form of ``sum((P + i)**k for i in range(N))``."""
    terms = (sympy.binomial(k, j) * CONTEXT ** (k - j) * _faulhaber(j) for j in range(k + 1))
    return sympy.Add(*terms)


def _faulhaber(j: int) -> sympy.Expr:
    """Return the closed form of ``sum(i**j for i in range(N))``, with 0**0 = 1."""
    difference = sympy.bernoulli(j + 1, STEPS) - sympy.bernoulli(j + 1, 0)
    return sympy.expand(difference / (j + 1))


@lru_cache(maxsize=4096)
def sum_over_rows(expr: sympy.Expr, kind: int, *, positive: bool = True) -> sympy.Expr:
    """Return the sum of a polynomial in :data:`ROW_SIZES` over the rows of one kind, in symbols such as ``SC_1``.

    2 B S (C + S) becomes 2 SC_1 + 2 SS_1, with SC_1 the sum of B S C over the rows of kind 1.

    Args:
        expr: the cost of one row.
        kind: number of the kind.
        positive: whether x is positive in terms Max(0, x) of all rows of the kind; otherwise they are 0.

    Raises:
        BadInput: the expression is not a sum of products in :data:`ROW_SUMS`.
    """

    def limited(term: sympy.Expr) -> sympy.Expr:
        return sympy.Add(*term.args) if positive else sympy.Integer(0)

    expr = sympy.sympify(expr).replace(lambda x: isinstance(x, sympy.Max) and 0 in x.args, limited)
    terms = sympy.Poly(sympy.expand(expr), *ROW_SIZES).terms()
    names = [ROW_SUMS.get((int(b), int(s), int(c))) for (b, s, c), _ in terms]
    if None in names:
        expected = f"a polynomial in {', '.join(map(str, ROW_SIZES))}"
        raise BadInput("the cost of a row cannot be summed over rows in symbols", where=text(expr), expected=expected)
    return sympy.Add(*(factor * sym(f"{name}_{kind}") for name, (_, factor) in zip(names, terms, strict=True)))
