"""What an adapter to a counter looks like, and what it answers."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from costproof.ledger.counter import UNATTRIBUTED, CounterInfo

if TYPE_CHECKING:
    from torch import Tensor

    from costproof.tracers.counters.surroundings import Positional


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a tool, in its own unit and words."""

    module: str
    """Path inside the model that the tool was given; :data:`UNATTRIBUTED` where it does not say."""
    kind: str
    """The operator as the tool calls it; empty for a module as a whole. ``a>b`` is ``b`` that ``a`` is made of,
    where the tool counted ``a`` as well."""
    value: int


@dataclass(frozen=True, slots=True)
class Counted:
    """All figures of a tool for one forward."""

    total: int
    """What the tool reports as its result."""
    rows: tuple[Row, ...]
    """They sum to ``total``."""
    notes: tuple[str, ...] = ()


class Counter(Protocol):
    """An adapter."""

    info: CounterInfo

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        """Run the tool on one forward, ``model(*args)``; whatever it raises is its answer."""
        ...


Figures = Mapping[str, Mapping[str, int]]
"""Path of a module -> operator -> a figure that contains those of the modules below."""


def own(figures: Figures) -> Iterator[tuple[str, str, int]]:
    """(path, operator, figure) without what the modules below have.

    A module belongs to its nearest ancestor with figures: lists of modules are never called and have none.
    """
    below: dict[str | None, list[str]] = {}
    for path in figures:
        below.setdefault(_ancestor(path, figures), []).append(path)
    for path, operators in figures.items():
        for kind, value in operators.items():
            yield path, kind, value - sum(figures[p].get(kind, 0) for p in below.get(path, ()))


def _ancestor(path: str, known: Figures) -> str | None:
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return None


def counted(total: int, rows: Iterable[Row], notes: tuple[str, ...] = ()) -> Counted:
    """Rows of equal module and operator summed; what they lack to the total stands unattributed."""
    sums: Tally[tuple[str, str]] = Tally()
    for row in rows:
        sums[row.module, row.kind] += row.value
    rest = total - sum(sums.values())
    if rest:
        sums[UNATTRIBUTED, ""] += rest
    return Counted(total, tuple(Row(m, k, v) for (m, k), v in sums.items() if v), notes)
