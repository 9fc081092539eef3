"""The sources: the one table that knows their names, their order and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Source:
    """One way to count a whole run."""

    name: str
    doing: str
    """What it does, for a line of progress."""
    graph: bool = True
    """Whether it counts operators of a graph; formulas do not."""
    usual: bool = True
    """Whether it counts unless somebody says otherwise."""


SOURCES: Final = (
    Source("analytic", "evaluating the formulas", graph=False),
    Source("static", "exporting the graphs"),
    Source("dynamic", "tracing the run"),
    Source("isolated", "tracing every stage alone", usual=False),
)
"""In the order in which they are shown and compared."""

ALL_SOURCES: Final = tuple(s.name for s in SOURCES)
GRAPH_SOURCES: Final = tuple(s.name for s in SOURCES if s.graph)
USUAL_SOURCES: Final = tuple(s.name for s in SOURCES if s.usual)
