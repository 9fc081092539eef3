"""Validate a sweep: count random points by their exported graphs, on the cores of this machine or on a Dask cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from costproof.ledger.environment import require
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK, BadInput, CostproofError
from costproof.ledger.metrics import Metric
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.target import WithKeys, lacking
from costproof.opgraph.rules.files import with_rules_in_force
from costproof.parametric.evaluator import CostCell, PointChoices
from costproof.parametric.grid import GridAxis, split_blocks
from costproof.run.capture import count_sources
from costproof.run.peaks import measure_peaks
from costproof.run.prepare import Prepared
from costproof.run.sweep_parts import SWEPT_PEAK, SweepPoints, has_graph_peak, largest_graph_peak, title
from costproof.views.numbers import exact

SOURCES: Final = ("analytic", "static")
_PATIENCE: Final = 5
"""Time limit for a scheduler to answer, in seconds."""
_TRIES: Final = 50
"""Draws per requested point, since most points of a sweep may be refused."""


@dataclass(frozen=True, slots=True)
class ValidatedPoint:
    """The result of counting one point by its graphs."""

    point: Mapping[str, Any]
    verdict: str
    """``exact``, ``explained``, ``unexplained`` or ``incomplete``."""
    wrong: tuple[str, ...] = ()
    """Differences from the sweep, or why the point could not be counted."""

    @property
    def exit_code(self) -> int:
        """Exit code, as of a report."""
        codes = {"exact": EXIT_OK, "explained": EXIT_OK, "incomplete": EXIT_INCOMPLETE}
        return codes.get(self.verdict, EXIT_FINDINGS)


def validate(
    sweep: SweepPoints, points: int, *, seed: int, jobs: int, cluster: str | None = None, progress: Progress = silent
) -> tuple[ValidatedPoint, ...]:
    """Count random points by their exported graphs.

    Args:
        sweep: the sweep.
        points: number of points; fewer if the sweep has fewer valid ones.
        seed: seed of the draws.
        jobs: processes of this machine; -1 for one per core.
        cluster: address of a Dask scheduler, whose workers count instead.
        progress: called with the steps.

    Raises:
        BadInput: the target has no graphs, or no scheduler answers at the address.
        Incomplete: joblib, Dask or torch is not installed.
    """
    missing = lacking(sweep.points.target, SOURCES)
    if missing:
        raise BadInput("the points cannot be counted statically", where="--validate", got=next(iter(missing.values())))
    require("sweep", "validating a sweep", "joblib", *(() if cluster is None else ("dask", "distributed")))
    require("trace", "validating a sweep")
    import joblib

    drawn = list(_draw_points(sweep, points, random.Random(f"costproof:{seed}")))
    work = [
        joblib.delayed(with_rules_in_force(_validate_point))(
            *sweep.points.run(place, numbers), dict(point), sweep.cells, sure
        )
        for place, numbers, point, sure in drawn
    ]
    progress("validate", 0, len(work))
    with ExitStack() as stack:
        stack.enter_context(_joblib_backend(cluster))
        how = {"n_jobs": jobs} if cluster is None else {}
        found: list[ValidatedPoint] = []
        # Dask's backend gives all results at once.
        for one in joblib.Parallel(**how, return_as="generator" if cluster is None else "list")(work):
            found.append(one)
            progress("validate", len(found), len(work))
    return tuple(found)


def _joblib_backend(cluster: str | None) -> AbstractContextManager[Any]:
    """Return a context in which joblib uses the cluster, if any."""
    if cluster is None:
        return nullcontext()
    import joblib
    from distributed import Client

    if "://" not in cluster:
        raise BadInput(
            "not the address of a Dask scheduler", where="--cluster", expected="tcp://HOST:PORT", got=cluster
        )
    stack = ExitStack()
    try:
        stack.enter_context(Client(cluster, timeout=_PATIENCE))
    except (OSError, ValueError) as error:
        fix = "start one: dask scheduler, and dask worker ADDRESS on every machine"
        raise BadInput("no Dask scheduler answers", where=cluster, got=str(error)[:120], fix=fix) from error
    stack.enter_context(joblib.parallel_config(backend="dask"))
    return stack


def _draw_points(
    sweep: SweepPoints, points: int, rng: random.Random
) -> Iterator[tuple[PointChoices, dict[str, int], dict[str, Any], dict[CostCell, int]]]:
    """Yield distinct random points that are valid, with the numbers of the sweep."""
    sizes = [prod(map(len, axes)) for axes in sweep.products]
    seen: set[tuple[int, ...]] = set()
    taken = 0
    for _ in range(_TRIES * points):
        which = rng.choices(range(len(sizes)), sizes)[0]
        at = tuple(rng.randrange(len(axis)) for axis in sweep.products[which])
        if taken == points or len(seen) == sum(sizes):
            return
        if (which, *at) in seen:
            continue
        seen.add((which, *at))
        (block,) = split_blocks(
            [
                GridAxis(a.names, tuple(c[i : i + 1] for c in a.columns))
                for a, i in zip(sweep.products[which], at, strict=True)
            ]
        )
        numbers = {n.variable: int(c[0]) for a in block.axes for n, c in zip(a.names, a.columns, strict=True)}
        place = sweep.choices(block)
        known = sweep.points.known(place, numbers)
        shape = next((s for s in known if s.holds(numbers)), None) or sweep.points.trace(place, numbers)
        if shape.ledger is None:
            continue
        if any(metric == SWEPT_PEAK for _, metric in sweep.cells) and not has_graph_peak(
            shape, sweep.points, place, numbers
        ):
            continue
        taken += 1
        names = {n.given: v for n, v in block.fixed.items()}
        names |= {n.given: numbers[n.variable] for a in block.axes for n in a.names}
        yield place, numbers, {n: names[n] for n in sweep.names if n in names}, shape.at(sweep.cells, numbers)


def _validate_point(
    target: WithKeys, workload: Workload, point: dict[str, Any], cells: tuple[CostCell, ...], sure: dict[CostCell, int]
) -> ValidatedPoint:
    """Count a point in the current process, and compare it with the sweep."""
    try:
        report = count_sources(Prepared(target, workload, SOURCES))
    except CostproofError as error:
        return ValidatedPoint(point, "incomplete", (error.line,))
    formulas = next(ledger for ledger in report.capture.ledgers if ledger.source == "analytic")
    calls = (
        measure_peaks(target, workload, eager=False, forms=False)
        if any(metric == SWEPT_PEAK for _, metric in cells)
        else ()
    )

    def counted(stage: str, metric: Metric) -> int | None:
        if metric == SWEPT_PEAK:
            return largest_graph_peak(calls, stage)
        return formulas.stage_total(stage, metric) if stage else formulas.total(metric)

    wrong = [
        f"{title(stage, metric)}: {sure[stage, metric]:,} in the sweep, {exact(found)} in the report"
        for stage, metric in cells
        if (found := counted(stage, metric)) != sure[stage, metric]
    ]
    wrong += [
        f"{f.stage} {f.metric}: {f.status}, {f.values}"
        for f in report.discrepancy.findings
        if f.status in ("unexplained", "static-only", "unsupported")
    ]
    return ValidatedPoint(
        point, "unexplained" if wrong and report.verdict != "incomplete" else report.verdict, tuple(wrong)
    )
