"""Define the protocol of adapters to counters and of their results."""

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
    """A number of a tool, in the tool's unit and operator names."""

    module: str
    """Path inside the model that the tool received; :data:`UNATTRIBUTED` if the tool does not report it."""
    kind: str
    """The operator as the tool names it; empty for a whole module.

    ``a>b`` is ``b`` as part of ``a``, if the tool counted both; ``>b`` is ``b`` that the tool counted before, under
    another parent.
    """
    value: int


@dataclass(frozen=True, slots=True)
class Counted:
    """All numbers of a tool for one forward pass."""

    total: int
    """The tool's own result."""
    rows: tuple[Row, ...]
    """Rows that sum to ``total``."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counter:
    """A tool with the function that runs it."""

    info: CounterInfo
    count: Callable[[Positional, tuple[Tensor, ...]], Counted]
    """Runs the tool on one forward, ``model(*args)``; an exception is its answer."""


def counted(total: int, rows: Iterable[Row], notes: tuple[str, ...] = ()) -> Counted:
    """Sum rows of equal module and operator, and add what is missing from the total as unattributed."""
    sums: Tally[tuple[str, str]] = Tally()
    for row in rows:
        sums[row.module, row.kind] += row.value
    sums[UNATTRIBUTED, ""] += total - sums.total()
    return Counted(total, tuple(Row(m, k, v) for (m, k), v in sums.items() if v), notes)
