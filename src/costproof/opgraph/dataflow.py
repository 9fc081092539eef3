"""Find which module's result feeds which other module in an operator trace.

Consider one call c of a module and the calls inside it. Each operator in c belongs to one of these calls or is c's
*own*.
A value created in call x *reaches* call y if

- an operator in y reads it (a view or cast created in x counts as created in x), or
- an own operator of c reads it, and the result of that operator reaches y.

Then x feeds y. It makes no difference whether the path leads over c's own operators (residual additions, reshapes,
concatenations), and a skip connection is an edge like any other: in a residual stream that c maintains itself, every
block feeds all later ones. Operators that only use a tensor's shape (``zeros_like``) read nothing. A value that is
created outside c and read in y gives an edge of an outer call; every read belongs to exactly one caller, the innermost
that contains both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import takewhile

from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import Graph
from costproof.opgraph.regions import tensors_read

CallKey = tuple[str, int]
"""Module path and call number."""


def data_edges(costed: CostedGraph) -> Counter[tuple[str, str]]:
    """Count, for each pair of modules ``(a, b)``, the calls of a that feed a sibling call of b."""
    return Counter((a[0], b[0]) for a, b in feeding_calls(costed))


def feeding_calls(costed: CostedGraph) -> set[tuple[CallKey, CallKey]]:
    """Return all pairs of calls in which the first call feeds the second."""
    chain = _chains(costed.graph)
    made_in: dict[str, tuple[CallKey, ...]] = {}
    through: dict[str, frozenset[CallKey]] = {}
    """Value created by an own operator -> the other calls that it was computed from."""
    found: set[tuple[CallKey, CallKey]] = set()
    for op, cost in zip(costed.graph.ops, costed.costs, strict=True):
        here = chain((op.module, op.call))
        reached: set[CallKey] = set()
        for value in tensors_read(op, cost):
            there = made_in.get(value.id)
            if there is None:
                continue
            depth = _common(there, here)
            if depth == 0:
                continue
            if len(there) > depth:
                sources: Iterable[CallKey] = (there[depth],)
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


def _chains(graph: Graph) -> Callable[[CallKey], tuple[CallKey, ...]]:
    """Return a function from a call to its enclosing calls, from the root to the call itself."""
    parents = {(c.module, c.call): c.parent for c in graph.calls}

    @cache
    def chain(call: CallKey) -> tuple[CallKey, ...]:
        parent = parents.get(call)
        return (call,) if parent is None else (*chain(parent), call)

    return chain


def _common(a: tuple[CallKey, ...], b: tuple[CallKey, ...]) -> int:
    """Return the length of the common prefix of two chains of calls."""
    return sum(1 for _ in takewhile(lambda calls: calls[0] == calls[1], zip(a, b, strict=False)))
