"""Why so many random configurations settle a polynomial identity (DeMillo-Lipton, Schwartz, Zippel).

Let D be formula minus graph, a polynomial in independent parameters, of degree at most d_i in
parameter i, and let parameter i be drawn uniformly from s_i values. If D is not the zero
polynomial, one draw shows D != 0 with probability at least the product of (1 - d_i / s_i): a
polynomial of degree d_i in one variable has at most d_i zeros, and this holds variable by variable.
Independent draws multiply the chances of missing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import sympy

from costproof.algebra.symbols import parse, sym


@dataclass(frozen=True, slots=True)
class Parameter:
    """One independent parameter of the drawn configurations."""

    name: str
    values: int
    """From how many values it is drawn, uniformly and independently of the others."""
    degree: int
    """Highest degree of any formula of the stage in it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How sure the draws make it that no formula of a stage is wrong."""

    stage: str
    parameters: tuple[Parameter, ...]
    fixed: tuple[str, ...]
    """Symbols of the formulas that are not drawn numbers: nothing follows about them."""
    caught: str
    """Lower bound of the chance that one draw shows a difference, as a fraction."""
    samples: int
    missed_exponent: int
    """The chance that all draws miss a difference is at most 10 to the minus this."""


def degrees(formulas: Iterable[str], independent: Mapping[str, str]) -> dict[str, int]:
    """Highest degree in each independent parameter.

    Args:
        formulas: expressions in the configuration's symbols.
        independent: symbol -> what it is in independent parameters: ``text_hidden`` ->
            ``text_heads * text_head_dim``; symbols that are not named stand for themselves.

    Ceilings and minima are taken as sizes of their own: their arguments do not count.
    """
    replaced = {sym(k): parse(v) for k, v in independent.items()}
    highest: dict[str, int] = {}
    for formula in dict.fromkeys(formulas):
        expr = parse(formula)
        opaque = {f: sympy.Dummy(positive=True) for f in expr.atoms(sympy.ceiling, sympy.floor, sympy.Min, sympy.Max)}
        expr = sympy.expand(expr.xreplace(opaque).subs(replaced))
        numerator = sympy.numer(sympy.together(expr))
        for symbol in numerator.free_symbols:
            if not isinstance(symbol, sympy.Dummy):
                degree = int(sympy.degree(numerator, symbol))
                highest[symbol.name] = max(highest.get(symbol.name, 0), degree)
    return highest


def bound(stage: str, degree: Mapping[str, int], values: Mapping[str, int], samples: int) -> Bound:
    """The bound for one stage; parameters that no formula of the stage has play no part.

    Symbols that are not drawn are named as such.

    Args:
        degree: parameter -> highest degree.
        values: parameter -> number of values it is drawn from.
    """
    parameters = tuple(Parameter(n, values[n], d) for n, d in sorted(degree.items()) if n in values and d > 0)
    fixed = tuple(n for n in sorted(degree) if n not in values)
    caught = prod((max(Fraction(0), 1 - Fraction(p.degree, p.values)) for p in parameters), start=Fraction(1))
    # (1 - c)^samples in powers of ten, by integers: squaring until the exponent is reached.
    missed = (1 - caught) ** samples
    exponent = max(0, len(str(missed.denominator // missed.numerator)) - 1) if missed else 9999
    # In thousandths, rounded down: it stays a lower bound.
    return Bound(stage, parameters, fixed, f"{int(caught * 1000)}/1000", samples, exponent)
