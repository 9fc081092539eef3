"""What an adapter to a counter looks like, and what it answers."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costproof.ledger.counter import UNATTRIBUTED, CounterInfo

if TYPE_CHECKING:
    from torch import Tensor

    from costproof.tracers.counters.tools import Positional


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a tool, in its own unit and words."""

    module: str
    """Path inside the model that the tool was given; :data:`UNATTRIBUTED` where it does not say."""
    kind: str
    """The operator as the tool calls it; empty for a module as a whole. ``a>b`` is ``b`` that ``a`` is made of,
    where the tool counted ``a`` as well; ``>b`` is ``b`` that it counted already, below another parent."""
    value: int


@dataclass(frozen=True, slots=True)
class Counted:
    """All figures of a tool for one forward."""

    total: int
    """What the tool reports as its result."""
    rows: tuple[Row, ...]
    """They sum to ``total``."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counter:
    """A tool, and the function that runs it."""

    info: CounterInfo
    count: Callable[[Positional, tuple[Tensor, ...]], Counted]
    """Runs the tool on one forward, ``model(*args)``; whatever it raises is its answer."""


def counted(total: int, rows: Iterable[Row], notes: tuple[str, ...] = ()) -> Counted:
    """Rows of equal module and operator summed; what they lack to the total stands unattributed."""
    sums: Tally[tuple[str, str]] = Tally()
    for row in rows:
        sums[row.module, row.kind] += row.value
    sums[UNATTRIBUTED, ""] += total - sums.total()
    return Counted(total, tuple(Row(m, k, v) for (m, k), v in sums.items() if v), notes)
