"""The graph peak in symbols: the largest of what is alive at the moments that can be highest at some sizes.

The order of the operators does not depend on the sizes, so what is alive at a moment is a sum of bytes in symbols. Most
moments hold no more than another one whatever the sizes are: those are left out, and the rest is a maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import sympy

from costproof.ledger.errors import Incomplete
from costproof.opgraph.graph import Size
from costproof.opgraph.liveness import MemoryEvent

Bytes = Mapping[sympy.Expr, sympy.Rational]
"""Product of symbols -> how often it is there."""
MOST: Final = 8
"""Moments in a form; more would be read by nobody."""


def peak_form(events: Iterable[MemoryEvent], sizes: Sequence[Size]) -> sympy.Expr:
    """The most bytes that are alive at once, for all sizes at which the graph holds.

    Args:
        events: what is made and given back, by number.
        sizes: bytes of each piece of memory.

    Raises:
        Incomplete: more than :data:`MOST` moments can be the highest.
    """
    found: list[Bytes] = []
    for moment in _moments(events, sizes):
        if not any(_at_least(other, moment) for other in found):
            found = [other for other in found if not _at_least(moment, other)] + [moment]
    if len(found) > MOST:
        raise Incomplete("too many moments can be the highest", expected=f"at most {MOST}", got=len(found))
    return sympy.Max(*(sum((n * term for term, n in moment.items()), sympy.Integer(0)) for moment in found or [{}]))


def _moments(events: Iterable[MemoryEvent], sizes: Sequence[Size]) -> Iterable[Bytes]:
    """What is alive after each event that makes something, as sums of products; equal ones once."""
    terms = [_terms(size) for size in sizes]
    alive: dict[sympy.Expr, sympy.Rational] = {}
    found: dict[frozenset[tuple[sympy.Expr, sympy.Rational]], None] = {}
    for event in events:
        for term, n in terms[event.tensor].items():
            alive[term] = alive.get(term, sympy.Integer(0)) + (n if event.made else -n)
        if event.made:
            found[frozenset((term, n) for term, n in alive.items() if n)] = None
    return [dict(moment) for moment in found]


def _terms(size: Size) -> Bytes:
    return dict(sympy.expand(size).as_coefficients_dict())


def _at_least(one: Bytes, other: Bytes) -> bool:
    """Whether a sum is less than another one nowhere: with 1 more than nothing for each size, no term takes away."""
    more = {term: n for term in {*one, *other} if (n := one.get(term, 0) - other.get(term, 0))}
    if all(n > 0 for n in more.values()):
        return True
    if all(n < 0 for n in more.values()):
        return False
    whole = sympy.Add(*(n * term for term, n in more.items()))
    # What rounds is 0 or more of itself; ceilings of sizes are 1 or more.
    opaque = {f: sympy.Dummy() + int(f.func is sympy.ceiling) for f in whole.atoms(sympy.ceiling, sympy.floor)}
    whole = whole.xreplace(opaque)
    if not whole.is_polynomial():
        return False
    shifted = whole.xreplace({symbol: symbol + 1 for symbol in whole.free_symbols if symbol.is_positive})
    return all(n > 0 for n in sympy.expand(shifted).as_coefficients_dict().values())
