"""Graph peaks in a sweep: what one export in symbols says, at all points for which it holds.

An export's sizes are numbers but for its symbols. So these peaks are of one configuration, and of settings that change
the work through symbols alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from costproof.ledger.errors import BadInput, Incomplete, no_such
from costproof.ledger.metrics import METRICS, PEAK_METRICS, Metric
from costproof.ledger.peaks import CallPeaks, largest
from costproof.models.target import WithKeys
from costproof.parametric.concolic import PointValues
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.grid import GridAxis
from costproof.parametric.regimes import PointChoices, Regime
from costproof.run.peaks import measured
from costproof.views.numbers import exact

SWEPT: Final[Metric] = "graph_peak_bytes"
"""The peak that an export has in symbols; the other one is seen in a run alone."""
VARIED: Final = ("batch", "text_tokens", "new_tokens")
"""Settings that every workload has, and that are symbols of an export."""
_SIZES: Final = ("setting:batch", "setting:text_tokens")


def not_swept(metric: Metric) -> BadInput | None:
    """Why a metric has no column: there is none of the name, or no form gives it."""
    if metric in METRICS or metric == SWEPT:
        return None
    known = (*METRICS, SWEPT)
    if metric not in PEAK_METRICS:
        return no_such("metric", metric, known, where="--metric")
    fix = f"costproof peaks TARGET finds that of one workload; {SWEPT} is swept"
    return BadInput("no formula and no graph gives this peak", where="--metric", got=metric, fix=fix)


def not_in_symbols(products: Iterable[Sequence[GridAxis]]) -> list[BadInput]:
    """What may not vary beside a graph peak: numbers that an export has as numbers, and keys of the configuration."""
    names = {name for axes in products for axis in axes for name in axis.names}
    wrong = sorted(
        {
            n.given
            for n in names
            if (n.number or n.variable.startswith("key:")) and n.variable.removeprefix("setting:") not in VARIED
        }
    )
    expected = f"{', '.join(VARIED)}, or what is not a number"
    return [
        BadInput("a graph peak has no symbol for what is varied", where=f"--over {name}", expected=expected)
        for name in wrong
    ]


def give_graphs(found: Regime, points: Evaluator[WithKeys], place: PointChoices, numbers: Mapping[str, int]) -> None:
    """Give a shape the calls of one of its points with their graph peaks in symbols; once.

    Raises:
        BadInput: the target cannot be exported.
        Incomplete: a graph peak is not known in symbols.
    """
    if found.graphs:
        return
    target, workload = points.run(place, numbers)
    calls = measured(target, workload, eager=False)
    if {(c.stage, c.invocation) for c in calls} != {(i.stage, i.id) for i in target.invocations(workload)}:
        raise Incomplete("not every call of the run has a graph", where=workload.name)
    for call in calls:
        if not call.form:
            raise Incomplete(
                "a graph peak is not known in symbols",
                where=f"{call.stage} {call.invocation}".strip(),
                got="; ".join(call.notes) or "no size of its export is a symbol",
            )
    found.graphs = calls


def beyond(found: Regime) -> Incomplete:
    """Why points have no graph peak at which a condition of an export is not met."""
    return Incomplete(
        "the exported graph does not hold here",
        where=SWEPT,
        got="negative: " + " or ".join(sorted({margin for call in found.graphs for margin in call.holds})),
        fix="sweep both sides one by one",
    )


def singles(values: PointValues, shape: tuple[int, ...]) -> Any:
    """For each point a number that says which of its sizes are 1: the exporter takes a symbol to be 2 or more."""
    made: Any = np.zeros(shape, np.int64)
    for i, name in enumerate(_SIZES):
        if name in values:
            made = made + (np.asarray(values[name]) == 1) * 2**i
    return made


def differs(
    found: Regime, points: Evaluator[WithKeys], place: PointChoices, numbers: Mapping[str, int]
) -> Incomplete | None:
    """Whether a point has another graph peak by graphs of its own sizes; tried once for those with the same of 1."""
    pattern = int(singles(numbers, ()))
    if pattern not in found.compared:
        calls = measured(*points.run(place, numbers), eager=False, forms=False)
        stages = ("", *dict.fromkeys(call.stage for call in calls))
        made = found.at([(stage, SWEPT) for stage in stages], numbers)
        wrong = [
            f"{stage or 'whole run'}: {made[stage, SWEPT]:,} by the one in symbols, {exact(real)} by that one"
            for stage in reversed(stages)
            if made[stage, SWEPT] != (real := peak_of(calls, stage))
        ]
        place_of = ", ".join(f"{name.removeprefix('setting:')} {value}" for name, value in numbers.items())
        found.compared[pattern] = (
            Incomplete(
                "the graph in symbols is not the one that is exported at such a point", where=place_of, got=wrong[0]
            )
            if wrong
            else None
        )
    return found.compared[pattern]


def peak_of(calls: Iterable[CallPeaks], stage: str) -> int | None:
    """The largest graph peak of a stage, or of all; 0 of none, ``None`` where one is not known."""
    here = [None if c.graph is None else c.graph.bytes for c in calls if stage in ("", c.stage)]
    return largest(here) if here else 0


def told(found: Regime, points: Evaluator[WithKeys], place: PointChoices, numbers: Mapping[str, int]) -> bool:
    """Whether a sweep has the graph peak of one point of a shape."""
    try:
        give_graphs(found, points, place, numbers)
    except Incomplete:
        return False
    held = found.graphs_hold({name: np.asarray([value]) for name, value in numbers.items()}, (1,))
    return bool(np.all(held)) and differs(found, points, place, numbers) is None
