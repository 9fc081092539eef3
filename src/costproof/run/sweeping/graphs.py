"""Graph peaks in a sweep: what one export in symbols says, at all points for which it holds.

An export's sizes are numbers but for its symbols. So these peaks are of one configuration, and of settings that change
the work through symbols alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from costproof.ledger.errors import BadInput, Incomplete, no_such
from costproof.ledger.metrics import METRICS, PEAK_METRICS, Metric
from costproof.ledger.peaks import CallPeaks, largest
from costproof.run.peaks import measured
from costproof.run.points import Points
from costproof.run.sweeping.axes import Axis
from costproof.run.sweeping.shapes import Place

SWEPT: Final[Metric] = "graph_peak_bytes"
"""The peak that an export has in symbols; the other one is seen in a run alone."""
VARIED: Final = ("batch", "text_tokens", "new_tokens")
"""Settings that every workload has, and that are symbols of an export."""


def not_swept(metric: Metric) -> BadInput | None:
    """Why a metric has no column: there is none of the name, or no form gives it."""
    if metric in METRICS or metric == SWEPT:
        return None
    known = (*METRICS, SWEPT)
    if metric not in PEAK_METRICS:
        return no_such("metric", metric, known, where="--metric")
    fix = f"costproof peaks TARGET finds that of one workload; {SWEPT} is swept"
    return BadInput("no formula and no graph gives this peak", where="--metric", got=metric, fix=fix)


def not_in_symbols(products: Iterable[Sequence[Axis]]) -> list[BadInput]:
    """What may not vary beside a graph peak: numbers that an export has as numbers, and keys of the configuration."""
    names = {name for axes in products for axis in axes for name in axis.names}
    wrong = sorted(
        {
            n.given
            for n in names
            if (n.number or n.variable.startswith("key:")) and n.variable.removeprefix("setting:") not in VARIED
        }
    )
    expected = f"{', '.join(VARIED)}, or what is no number"
    return [
        BadInput("a graph peak has no symbol for what is varied", where=f"--over {name}", expected=expected)
        for name in wrong
    ]


def graphs_at(points: Points, place: Place, numbers: Mapping[str, int]) -> tuple[CallPeaks, ...]:
    """Every call of a run with its graph peak in symbols, by exports at one point.

    Raises:
        BadInput: the target cannot be exported.
        Incomplete: a graph peak is not known in symbols.
    """
    target, workload = points.run(place, numbers)
    found = measured(target, workload, eager=False)
    if {(c.stage, c.invocation) for c in found} != {(i.stage, i.id) for i in target.invocations(workload)}:
        raise Incomplete("not every call of the run has a graph", where=workload.name)
    for call in found:
        if not call.form:
            raise Incomplete(
                "a graph peak is not known in symbols",
                where=f"{call.stage} {call.invocation}".strip(),
                got="; ".join(call.notes) or "no size of its export is a symbol",
            )
    return found


def peaks_at(points: Points, place: Place, numbers: Mapping[str, int]) -> tuple[CallPeaks, ...]:
    """The graph peaks of one point by graphs that are exported at its own sizes."""
    return measured(*points.run(place, numbers), eager=False, forms=False)


def peak_of(calls: Iterable[CallPeaks], stage: str) -> int | None:
    """The largest graph peak of a stage, or of all; 0 of none, ``None`` where one is not known."""
    here = [None if c.graph is None else c.graph.bytes for c in calls if stage in ("", c.stage)]
    return largest(here) if here else 0
