"""Express the graph peak in symbols, as the maximum over the moments that can be highest at some sizes.

The order of the operators does not depend on the sizes, so the live bytes at a moment are a sum of symbolic sizes. Most
moments never exceed another one, whatever the sizes; they are dropped, and the rest is a maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import sympy

from costproof.ledger.errors import Incomplete
from costproof.opgraph.graph import Size
from costproof.opgraph.liveness import MemoryEvent

Bytes = Mapping[sympy.Expr, sympy.Rational]
"""Product of symbols -> its coefficient."""
MOST: Final = 8
"""Maximum number of moments in a symbolic peak; longer ones are unreadable."""


def peak_form(events: Iterable[MemoryEvent], sizes: Sequence[Size]) -> sympy.Expr:
    """Return the peak of live bytes for all sizes at which the graph is valid.

    Args:
        events: allocations and releases, by the number of the piece of memory.
        sizes: bytes of each piece of memory.

    Raises:
        Incomplete: more than :data:`MOST` moments can be the highest.
    """
    found: list[Bytes] = []
    for moment in _moments(events, sizes):
        if not any(_at_least(other, moment) for other in found):
            found = [other for other in found if not _at_least(moment, other)] + [moment]
    if len(found) > MOST:
        raise Incomplete("too many moments may be the peak", expected=f"at most {MOST}", got=len(found))
    return sympy.Max(*(sum((n * term for term, n in moment.items()), sympy.Integer(0)) for moment in found or [{}]))


def _moments(events: Iterable[MemoryEvent], sizes: Sequence[Size]) -> Iterable[Bytes]:
    """Return the distinct live bytes after each allocation, as sums of products."""
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
    """Return whether one sum is never less than another, by their coefficients with every size >= 1."""
    more = {term: n for term in {*one, *other} if (n := one.get(term, 0) - other.get(term, 0))}
    if all(n > 0 for n in more.values()):
        return True
    if all(n < 0 for n in more.values()):
        return False
    whole = sympy.Add(*(n * term for term, n in more.items()))
    # Rounding functions are at least 0; ceilings of sizes are at least 1.
    opaque = {f: sympy.Dummy() + int(f.func is sympy.ceiling) for f in whole.atoms(sympy.ceiling, sympy.floor)}
    whole = whole.xreplace(opaque)
    if not whole.is_polynomial():
        return False
    shifted = whole.xreplace({symbol: symbol + 1 for symbol in whole.free_symbols if symbol.is_positive})
    return all(n > 0 for n in sympy.expand(shifted).as_coefficients_dict().values())
