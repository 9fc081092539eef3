"""Express the graph peak in symbols, as the maximum over the moments that can be highest at some sizes.

The order of the operators does not depend on the sizes, so the live bytes at a moment are a sum of symbolic sizes. Most
moments never exceed another one, whatever the sizes; they are dropped, and the rest is a maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import sympy

from costproof.algebra.dominance import Factors, Terms, expression_of, terms_of, undominated
from costproof.algebra.evaluation import ExactNumber
from costproof.ledger.errors import Incomplete
from costproof.opgraph.graph import Size
from costproof.opgraph.liveness import MemoryEvent

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
    found = undominated(_moments(events, sizes))
    if len(found) > MOST:
        raise Incomplete("too many moments may be the peak", expected=f"at most {MOST}", got=len(found))
    return sympy.Max(*map(expression_of, found or [{}]))


def _moments(events: Iterable[MemoryEvent], sizes: Sequence[Size]) -> Iterable[Terms]:
    """Yield the live bytes after each allocation, as sums of products."""
    terms = [terms_of(size) for size in sizes]
    alive: dict[Factors, ExactNumber] = {}
    for event in events:
        for of, n in terms[event.tensor].items():
            alive[of] = alive.get(of, 0) + (n if event.made else -n)
        if event.made:
            yield {of: n for of, n in alive.items() if n}
