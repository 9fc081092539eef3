"""Minima and maxima of sizes that are settled for all values: ``Min(H**2, 224**2*ceiling(H/224)**2)`` is ``H**2``."""

from __future__ import annotations

import sympy


def settled(expr: sympy.Expr) -> sympy.Expr:
    """The expression without the minima and maxima of which one argument is the outcome at all sizes.

    A ceiling is its argument plus something from 0 to 1. With that something as a symbol, a difference whose
    expanded form has no negative term is nowhere negative, since all symbols are positive.
    """
    found = {
        f: chosen
        for f in expr.atoms(sympy.Min, sympy.Max)
        if (chosen := _outcome(f.args, least=isinstance(f, sympy.Min))) is not None
    }
    return sympy.expand(expr.xreplace(found)) if found else expr


def _outcome(candidates: tuple[sympy.Expr, ...], *, least: bool) -> sympy.Expr | None:
    for one in candidates:
        if all(_never_negative(other - one if least else one - other) for other in candidates):
            return one
    return None


def _never_negative(difference: sympy.Expr) -> bool:
    up = {c: c.args[0] + sympy.Dummy(positive=True) for c in difference.atoms(sympy.ceiling)}
    terms = sympy.Add.make_args(sympy.expand(difference.xreplace(up)))
    return all(t.is_nonnegative for t in terms)
