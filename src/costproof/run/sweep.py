"""Implement ``costproof.sweep``: exact costs over ranges of configuration keys and settings."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costproof.ledger.environment import require
from costproof.ledger.errors import (
    EXIT_FINDINGS,
    EXIT_INCOMPLETE,
    EXIT_OK,
    BadInput,
    CostproofError,
    Incomplete,
    Problems,
    no_such,
)
from costproof.ledger.metrics import SUMMED, Metric
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.ledger.writing import write_named
from costproof.models.registry import load_target
from costproof.models.settings import option, typed_settings
from costproof.models.target import Exportable, WithKeys, lacking
from costproof.opgraph.rules.files import Files, with_rules_in_force
from costproof.parametric.concolic import BranchCondition, PathCondition
from costproof.parametric.evaluator import CostCell, Evaluator, PointChoices, Regime
from costproof.parametric.exact_arrays import Int128Array
from costproof.parametric.grid import MOST_POINTS, GridAxis, Over, axes_from_csv, grid_axes, split_blocks
from costproof.parametric.polynomial import AtomTable
from costproof.run import sweep_files
from costproof.run.count_lock import count_lock
from costproof.run.operands import export_target
from costproof.run.peaks import measure_peaks
from costproof.run.prepare import Prepared
from costproof.run.sweep_parts import (
    PART_POINTS,
    SWEPT_PEAK,
    SweepPoints,
    counted_cost,
    has_graph_peak,
    largest_graph_peak,
    metric_error,
    not_symbolic_errors,
    title,
)
from costproof.tracers.cache import check_configuration_file
from costproof.views.numbers import exact

if TYPE_CHECKING:
    import pandas

    from costproof.reports.plots.strips import SweepTable

DEFAULT_METRICS: Final = ("flops", "weight_bytes", "kv_cache_bytes", "output_bytes")
MOST_GRAPH_POINTS: Final = 1_000
"""Limit for the points of a sweep that exported graphs count one by one."""


@dataclass(slots=True)
class Sweep(SweepPoints):
    """A prepared sweep, whose costs are evaluated only when a method needs them."""

    def stream(self, out: Callable[[str], object], progress: Progress = silent) -> sweep_files.Tally:
        """Pass all rows as CSV to a function, part by part."""
        self._tell(progress)
        return sweep_files.stream(self, out)

    def _tell(self, progress: Progress) -> None:
        """Tell a function how far exports of a target without formulas are."""
        if isinstance(self.points, GraphEvaluator):
            self.points.progress = progress

    def write(self, path: str | os.PathLike[str], progress: Progress = silent) -> sweep_files.Tally:
        """Write all rows to a CSV, JSON or Parquet file, by its suffix. An interrupted sweep is resumed.

        Raises:
            BadInput: an unknown suffix, or a place that cannot be written to.
            Incomplete: Parquet without pyarrow.
        """
        self._tell(progress)
        return sweep_files.write(self, Path(path), progress)

    def count(self) -> sweep_files.Tally:
        """Count the points and the refused points without computing costs; an unknown cost refuses a point later."""
        found = sweep_files.Tally()
        for part in replace(self, cells=()).parts():
            found.take(part)
        return found

    def frame(self) -> pandas.DataFrame:
        """Return all rows as a DataFrame, in which columns with numbers beyond int64 hold Python integers."""
        import pandas

        parts = list(self.parts())
        columns: dict[str, Any] = {}
        for name in self.names:
            found = [p.varied[name] if p.varied[name] is not None else np.full(p.rows, None, object) for p in parts]
            columns[name] = np.concatenate(found)
        for name in self.titles:
            pieces = [p.costs[name] for p in parts]
            columns[name] = np.concatenate([c.python() if isinstance(c, Int128Array) else c for c in pieces])
        return pandas.DataFrame(columns)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw lines per stage, stacked areas and heat maps of the first grid.

        Raises:
            BadInput: an unknown suffix, no point is valid, or the place cannot be written to.
            Incomplete: matplotlib is not installed.
        """
        from costproof.reports.plots.figure import KINDS
        from costproof.reports.plots.strips import draw, strips

        file, endings = Path(path), [f".{kind}" for kind in KINDS]
        if file.suffix not in endings:
            raise BadInput("no such kind of picture", where=str(file), expected=" or ".join(endings))
        write_named(file, draw(*strips(picture_rows(self)), file.suffix[1:]))

    def validate(
        self,
        points: int,
        *,
        seed: int = 1,
        jobs: int = -1,
        cluster: str | None = None,
        progress: Progress = silent,
    ) -> tuple[ValidatedPoint, ...]:
        """Count random points by their exported graphs, as :func:`costproof.run.sweep.validate` does."""
        with count_lock(self.rules):
            return validate(self, points, seed=seed, jobs=jobs, cluster=cluster, progress=progress)


def sweep(
    target: str,
    over: Over | Iterable[Over] = (),
    *,
    table: str | os.PathLike[str] | None = None,
    metrics: Iterable[str] | None = None,
    stages: Iterable[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    size: int = PART_POINTS,
    rules: Files = (),
    trust_remote_code: bool = False,
    **settings: Any,
) -> Sweep:
    """Prepare a sweep without computing any cost.

    Args:
        target: a target. Without closed formulas each point is counted by exported graphs.
        over: name -> values, whose combinations are the points: ``{"batch": [1, 8], "base_size": "512:1280:64"}``.
            Names joined by ``/`` vary in step. Several mappings are swept one after another.
        table: a CSV file whose rows are points, after those of ``over``.
        metrics: columns, for each stage and for the whole run (default: :data:`DEFAULT_METRICS`). For
            ``graph_peak_bytes`` torch exports the target once for each form of its graphs.
        stages: stages with columns of their own (default: all).
        config: a configuration file (default: the published configuration).
        preset: name of the workload; ``settings`` override it, where they do not vary.
        size: points per part, which bounds the memory.
        rules: Python files with operator rules, which are executed, for points that are counted by exported graphs.
        trust_remote_code: whether the code of a snapshot may run.

    Raises:
        BadInput, Problems: all invalid names and values.
        Incomplete: torch is not installed, for peaks.
    """
    wanted = DEFAULT_METRICS if metrics is None else tuple(dict.fromkeys(metrics))
    with count_lock(rules):  # reports an invalid file before anything is evaluated
        model = load_target(target, None if config is None else Path(config), trusted=trust_remote_code)
        by_graph = not isinstance(model, WithKeys)
        points = Evaluator(model) if isinstance(model, WithKeys) else graph_evaluator(model, target, wanted)
        check_configuration_file(points.target)
        products: Iterable[Over] = [over] if isinstance(over, Mapping) else over
    found: list[tuple[GridAxis, ...]] = [grid_axes(points, one) for one in products if one]
    if table is not None:
        found.append(axes_from_csv(points, Path(table)))
    problems: list[CostproofError] = []
    given = {k: v for k, v in settings.items() if v is not None and v != ()}
    chosen = typed_settings(points.target.settings(), given, option, problems)
    known = points.target.info().stages
    named = known if stages is None else tuple(dict.fromkeys(stages))
    problems += [error for metric in wanted if (error := metric_error(metric)) is not None]
    problems += not_symbolic_errors(found) if SWEPT_PEAK in wanted and not by_graph else []
    problems += [no_such("stage", s, known, where="--stage") for s in named if s not in known]
    fixed = {f"setting:{name}": name for name in chosen} | ({"preset": "preset"} if preset is not None else {})
    twice = {fixed[n.variable] for grid in found for axis in grid for n in axis.names if n.variable in fixed}
    problems += [
        BadInput("this setting is both varied and fixed", where=option(name), fix="leave out one of the two")
        for name in sorted(twice)
    ]
    if not found:
        problems.append(BadInput("nothing to vary", where="--over", expected="NAME=VALUES"))
    count = sum(prod(map(len, grid)) for grid in found)
    if count > (most := MOST_GRAPH_POINTS if by_graph else MOST_POINTS):
        expected = f"at most {most:,}" + (", each counted by graphs, as no formulas describe the target" * by_graph)
        problems.append(BadInput("too many points", where="--over", expected=expected, got=f"{count:,}"))
    if problems:
        raise problems[0] if len(problems) == 1 else Problems("invalid sweep", problems)
    if SWEPT_PEAK in wanted or by_graph:
        require("trace", "a count by graphs")
    cells = tuple((stage, metric) for metric in wanted for stage in ("", *named))
    files = (rules,) if isinstance(rules, str | os.PathLike) else rules
    return Sweep(points, tuple(found), cells, preset, chosen, size, rules=tuple(os.path.abspath(f) for f in files))


def picture_rows(swept: SweepPoints) -> SweepTable:
    """Return the rows to draw: lines along each varied name through the first valid point, and a plane of two names.

    They are evaluated again, since the sweep may have millions of other points.

    Raises:
        BadInput: no point is valid.
    """
    from costproof.reports.plots.strips import HEAT, LINES, POINTS, SweepTable

    base, at = _first_valid_point(swept)
    varied = [i for i, axis in enumerate(base) if len(axis) > 1] or [0]
    cuts = [{i: _spread(len(base[i]), POINTS)} for i in varied[:LINES]]
    if len(varied) > 1:
        cuts.append({i: _spread(len(base[i]), HEAT) for i in varied[:2]})
    # Costs of the whole run are always drawn, whatever columns the sweep has.
    cells = tuple(dict.fromkeys((*(("", metric) for _, metric in swept.cells), *swept.cells)))
    rows = dict.fromkeys(row for cut in cuts for row in _rows(replace(swept, cells=cells), _restrict(base, at, cut)))
    names = tuple(name.given for axis in base for name in axis.names)
    first = tuple(column[i] for axis, i in zip(base, at, strict=True) for column in axis.columns)
    ordered = sorted(rows, key=lambda row: row[: len(names)] != first)
    return SweepTable(swept.points.target.name, names, tuple(title(s, m) for s, m in cells), ordered)


def _first_valid_point(swept: SweepPoints) -> tuple[tuple[GridAxis, ...], tuple[int, ...]]:
    """Return the axes of the first grid, and the indices of its first valid point."""
    axes = swept.products[0]
    for part in replace(swept, products=(axes,), cells=()).parts():
        if part.rows:
            first = {name: values[0] for name, values in part.varied.items() if values is not None}
            return axes, tuple(_index(axis, first) for axis in axes)
    raise BadInput(
        "the sweep has no valid point to draw",
        where="the sweep",
        got="all points were refused",
        fix="--dry-run lists the reasons",
    )


def _index(axis: GridAxis, values: Mapping[str, Any]) -> int:
    wanted = tuple(values[name.given] for name in axis.names)
    return next(i for i in range(len(axis)) if tuple(c[i] for c in axis.columns) == wanted)


def _spread(length: int, most: int) -> list[int]:
    """Return at most ``most`` evenly spaced indices of an axis, both ends included."""
    return list(range(length)) if length <= most else sorted({i * (length - 1) // (most - 1) for i in range(most)})


def _restrict(base: Sequence[GridAxis], at: Sequence[int], cut: Mapping[int, list[int]]) -> tuple[GridAxis, ...]:
    """Return the axes reduced to the selected indices; an axis without a selection keeps one index."""
    return tuple(
        GridAxis(axis.names, tuple([column[j] for j in cut.get(i, [at[i]])] for column in axis.columns))
        for i, axis in enumerate(base)
    )


def _rows(swept: SweepPoints, axes: tuple[GridAxis, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the valid points of a sweep's grid."""
    names = [name.given for axis in axes for name in axis.names]
    for part in replace(swept, products=(axes,)).parts():
        yield from sweep_files.rows_of(part, names)


SOURCES: Final = ("analytic", "static")
_PATIENCE: Final = 5
"""Time limit for a Dask scheduler to answer, in seconds."""
_TRIES: Final = 50
"""Random draws per requested point, since most points of a sweep may be refused."""


@dataclass(frozen=True, slots=True)
class ValidatedPoint:
    """The comparison of one point of a sweep with a count by exported graphs."""

    point: Mapping[str, Any]
    verdict: str
    """``exact``, ``explained``, ``unexplained`` or ``incomplete``."""
    wrong: tuple[str, ...] = ()
    """Differences between graph and sweep, or the reason why the point could not be counted."""

    @property
    def exit_code(self) -> int:
        """Exit code of the comparison, with the meaning of a report's exit code."""
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
    """Return a context in which joblib uses this Dask cluster, or its own processes."""
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
    """Yield distinct random points of the sweep that are valid, with the sweep's numbers."""
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
    """Count a point by its exported graphs in this process, and compare it with the sweep's numbers."""
    from costproof.run.capture import count_sources  # loads the tracers

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
        return counted_cost(formulas, stage, metric)

    numbers = {cell: counted(*cell) for cell in cells}
    differs = any(found not in (None, sure[cell]) for cell, found in numbers.items())
    wrong = [
        f"{title(*cell)}: {sure[cell]:,} in the sweep, {exact(found)} in the report"
        for cell, found in numbers.items()
        if found != sure[cell]
    ]
    wrong += [
        f"{f.stage} {f.metric}: {f.status}, {f.values}"
        for f in report.discrepancy.findings
        if f.status in ("unexplained", "static-only", "unsupported")
    ]
    lacking = report.verdict == "incomplete" and not differs
    return ValidatedPoint(point, "unexplained" if wrong and not lacking else report.verdict, tuple(wrong))


@dataclass(slots=True)
class GraphEvaluator(Evaluator[Any]):
    """Evaluator of a target without formulas, which counts every point by exported graphs.

    An export with symbolic sizes is cached and serves all points at which its guards hold.
    """

    metrics: Collection[Metric] = ()
    """Metrics that must be known at every point."""
    progress: Progress = silent
    """Is told how far the exports of a point are."""

    def key(self, name: str, where: str = "") -> str:
        """Raise ``BadInput``: a target without formulas has a fixed configuration."""
        raise no_such("setting", name, [s.name for s in self.target.settings()], where=where or name)

    def keys(self) -> dict[str, Any]:
        """Return an empty mapping: a target without formulas has a fixed configuration."""
        return {}

    def trace(self, choices: PointChoices, numbers: Mapping[str, int]) -> Regime:
        """Return a regime that covers one point only, whose costs are numbers."""
        conditions = (BranchCondition("==", ("var", name), ("int", value), True) for name, value in numbers.items())
        found = self._regime([PathCondition(conditions)], choices, numbers)
        self.known(choices, numbers).append(found)
        return found

    def _regime(self, paths: list[PathCondition], choices: PointChoices, numbers: Mapping[str, int]) -> Regime:
        atoms = AtomTable()
        try:
            ledger = self.ledger(choices, numbers)
            calls = self.target.invocations(self.run(choices, numbers)[1])
        except CostproofError:
            return Regime(paths, None, {}, {}, atoms, {})
        sizes = {(c.stage, c.id): {name: atoms.from_size(("int", n)) for name, n in c.symbols.items()} for c in calls}
        nodes = tuple(replace(n, exprs={m: str(cost) for m in SUMMED if (cost := n.cost(m))}) for n in ledger.nodes)
        counted = replace(ledger, nodes=nodes)
        return Regime(paths, counted, {}, {("", ""): {}, **sizes}, atoms, {}, checked=True)

    def ledger(self, choices: PointChoices, numbers: Mapping[str, int]) -> Ledger:
        """Count one point by exported graphs.

        Raises:
            Problems, BadInput: the target refuses the point.
            Incomplete: an export failed, or a cost is not known.
        """
        target, workload = self.run(choices, numbers)
        counted = export_target(target, workload, self.progress).exported
        assert counted is not None
        found = counted.ledger
        for metric in self.metrics:
            if metric in SUMMED and found.total(metric) is None:
                raise Incomplete("a cost of this point is not known", where=workload.name, got=metric)
        return found


def graph_evaluator(target: object, name: str, metrics: Collection[Metric]) -> GraphEvaluator:
    """Return the evaluator of a target without formulas.

    Raises:
        BadInput: it has no graphs either.
    """
    if not isinstance(target, Exportable):
        raise BadInput("neither formulas nor graphs describe this target", where=name)
    return GraphEvaluator(target, metrics=metrics)
