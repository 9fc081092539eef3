"""Which module's result feeds which other module, read off an operator trace.

Take one call c of a module, and the calls that it makes. Each operator inside c belongs to one of
them, or is c's *own*. A value made under the call x *reaches* the call y if

- an operator under y reads it (a view or cast made under x is made under x: it came through there), or
- an own operator of c reads it, and what that operator makes reaches y.

Then x feeds y. Whether the way leads over c's own operators (residual additions, reshapes,
concatenations) or not makes no difference, and a skip connection is an edge like any other: in a
residual stream that c keeps itself, every block feeds all later ones. Operators that only look at a
tensor's shape (``zeros_like``) read nothing. What is made outside c and read under y is an edge of
an outer call; every read belongs to exactly one caller, the innermost that holds both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import takewhile

from costproof.opgraph.costed import Costed
from costproof.opgraph.graph import Graph
from costproof.opgraph.regions import read_by

Call = tuple[str, int]
"""Module path and number of the call."""


def data_edges(costed: Costed) -> Counter[tuple[str, str]]:
    """``(a, b)`` -> pairs of a call of a and a call of b, siblings by caller, of which the first feeds the second."""
    return Counter((a[0], b[0]) for a, b in fed(costed))


def fed(costed: Costed) -> set[tuple[Call, Call]]:
    """All pairs of calls of which the first feeds the second."""
    chain = _chains(costed.graph)
    made_in: dict[str, tuple[Call, ...]] = {}
    through: dict[str, frozenset[Call]] = {}
    """Value made by an own operator -> the calls, beside that operator, that reach it."""
    found: set[tuple[Call, Call]] = set()
    for op, cost in zip(costed.graph.ops, costed.costs, strict=True):
        here = chain((op.module, op.call))
        reached: set[Call] = set()
        for value in read_by(op, cost):
            there = made_in.get(value.id)
            if there is None:
                continue
            depth = _common(there, here)
            if depth == 0:
                continue
            if len(there) > depth:
                sources: Iterable[Call] = (there[depth],)
            else:
                sources = through.get(value.id, ())
            if len(here) > depth:
                found.update((source, here[depth]) for source in sources)
            else:
                reached.update(sources)
        for out in op.outputs:
            made_in[out.id] = here
            if reached:
                through[out.id] = frozenset(reached)
    return found


def _chains(graph: Graph) -> Callable[[Call], tuple[Call, ...]]:
    """Call -> the calls around it, from the root to itself."""
    parents = {(c.module, c.call): c.parent for c in graph.calls}

    @cache
    def chain(call: Call) -> tuple[Call, ...]:
        parent = parents.get(call)
        return (call,) if parent is None else (*chain(parent), call)

    return chain


def _common(a: tuple[Call, ...], b: tuple[Call, ...]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda calls: calls[0] == calls[1], zip(a, b, strict=False)))
