"""Evaluate the points of a sweep part by part; each regime (one branch of all formulas) is compiled once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np

from costproof.ledger.errors import BadInput, Bug, CostproofError, Incomplete, Problems, no_such
from costproof.ledger.mesh import AXES
from costproof.ledger.metrics import COMM, PEAK_METRICS, SUMMED, Metric
from costproof.ledger.node import Ledger
from costproof.ledger.peaks import CallPeaks, largest
from costproof.ledger.workload import Workload, counted_line, unknown_bytes
from costproof.models.target import WithKeys
from costproof.parametric.concolic import PointValues
from costproof.parametric.evaluator import CostCell, Evaluator, PointChoices, Regime
from costproof.parametric.exact_arrays import ExactColumn, Int128Array
from costproof.parametric.grid import PRESET, GridAxis, GridBlock, split_blocks
from costproof.run.count_lock import count_lock
from costproof.run.peaks import measure_peaks
from costproof.views.numbers import exact

PART_POINTS: Final = 65_536
"""Default number of points of one part."""
_PRIMER_BYTES: Final = 2**24
_MOST_CHECKS: Final = 50
"""Number of regimes whose compiled costs are compared with the formulas at one more point."""
SWEPT_PEAK: Final[Metric] = "graph_peak_bytes"
"""The peak metric that a sweep can have; an export gives it as an expression, while the eager peak needs a run."""
_SYMBOLIC_SETTINGS: Final = ("batch", "text_tokens", "new_tokens")
"""Settings of every workload that are symbols in an exported graph."""
_SIZES: Final = ("setting:batch", "setting:text_tokens")


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """Points of a sweep that are refused for one reason, since no valid model or workload has these values."""

    why: CostproofError
    """The error of the target at the example."""
    example: Mapping[str, Any]
    count: int

    @property
    def reason(self) -> str:
        """Return the message and location of the errors, without the numbers of a single point."""
        problems = self.why.problems if isinstance(self.why, Problems) else (self.why,)
        return "; ".join(f"{p.what} ({p.where})" if p.where else p.what for p in problems)

    @property
    def says(self) -> str:
        """Return all errors of the example point in one line."""
        return " | ".join(p.line for p in (self.why.problems if isinstance(self.why, Problems) else (self.why,)))


@dataclass(frozen=True, slots=True)
class SweepPart:
    """Results at consecutive points of a sweep; refused points have no row."""

    points: int
    rows: int
    """Number of points that are valid."""
    varied: Mapping[str, Any]
    """Arrays with the values of all rows, by varying name; ``None`` if the name does not vary in this part."""
    costs: Mapping[str, ExactColumn]
    """Costs of all rows, by column title: ``prefill.flops``, or ``flops`` for the whole run."""
    refused: tuple[RefusedGroup, ...]


@dataclass(frozen=True, slots=True)
class _RegimePart:
    """Those points of a part of a sweep that one regime covers, and their costs."""

    where: Any
    columns: list[ExactColumn]


@dataclass(slots=True)
class SweepPoints:
    """All points of a sweep, and the costs to compute at each."""

    points: Evaluator[WithKeys]
    products: tuple[tuple[GridAxis, ...], ...]
    """Grids of points, each as its axes; the sweep visits one grid after another."""
    cells: tuple[CostCell, ...]
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are the same at all points."""
    size: int = PART_POINTS
    rules: tuple[str, ...] = ()
    """Files with operator rules, for points that are counted by exported graphs."""
    checks: int = 0
    """Number of regimes that were compared with the formulas themselves."""

    def __len__(self) -> int:
        return sum(prod(map(len, axes)) for axes in self.products)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of everything that varies, in the order of the columns."""
        return tuple(dict.fromkeys(name.given for axes in self.products for axis in axes for name in axis.names))

    @property
    def counted(self) -> str:
        """Return the line that states the conditions of the count, for the settings that are the same at all points."""
        line = counted_line(self.points.target.info(), self._workload)
        spread = not {*AXES}.isdisjoint(self.names)
        return f"{line}; one rank of the devices of each point" if spread else line

    @property
    def _workload(self) -> Workload:
        """Return the workload of the fixed settings, or the preset's if they are valid only with varying ones."""
        target = self.points.target
        try:
            return target.workload(self.preset, **self.settings)
        except CostproofError:
            return target.workload(self.preset)

    @property
    def incomplete(self) -> bool:
        """Whether a column is in bytes that are unknown because the checkpoint is quantised."""
        return bool(unknown_bytes(self.points.target.info(), self._workload) & {metric for _, metric in self.cells})

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles of the cost columns."""
        return tuple(title(stage, metric) for stage, metric in self.cells)

    def parts(self, skip: int = 0) -> Iterator[SweepPart]:
        """Yield the results in parts of at most :attr:`size` points, beginning after ``skip`` parts."""
        number = 0
        # glibc returns freed arrays of some 100 kB to the system, which zeroes them at the next allocation, until a
        # larger array was freed once. This array is never written to.
        np.empty(_PRIMER_BYTES, np.uint8)
        for axes in self.products:
            for block in split_blocks(axes):
                choices: PointChoices | None = None
                for values, shape in block.boxes(self.size):
                    number += 1
                    if number <= skip:
                        continue
                    choices = choices or self.choices(block)
                    with count_lock(self.rules):
                        part = self._part(block, choices, values, shape)
                    yield part

    def choices(self, block: GridBlock) -> PointChoices:
        """Return the values that all points of a block share, with the varying numbers of its first point."""
        fixed = {name.variable: value for name, value in block.fixed.items()}
        fixed |= {n.variable: int(c[0]) for axis in block.axes for n, c in zip(axis.names, axis.columns, strict=True)}
        settings = {**self.settings, **{k[8:]: v for k, v in fixed.items() if k.startswith("setting:")}}
        keys = {k[4:]: v for k, v in fixed.items() if k.startswith("key:")}
        return self.points.choices(keys, fixed.get(PRESET, self.preset), settings)

    def _part(
        self, block: GridBlock, choices: PointChoices, values: dict[str, Any], shape: tuple[int, ...]
    ) -> SweepPart:
        """Evaluate a block of points regime by regime; trace a new regime at a point that no known one covers."""
        known = self.points.known(choices, values)
        queue = list(known)
        left: Any = True
        pieces: list[_RegimePart] = []
        refused: list[RefusedGroup] = []
        while np.any(left):
            if not queue:
                at = np.unravel_index(int(np.argmax(np.broadcast_to(left, shape))), shape)
                first = {k: int(np.broadcast_to(v, shape)[at]) for k, v in values.items()}
                queue.append(self.points.trace(choices, first))
            regime = queue.pop(0)
            mask = regime.mask(values)
            if mask is False:
                continue
            here = left if mask is True else np.logical_and(left, np.broadcast_to(mask, shape))
            if not np.any(here):
                continue
            left = False if here is left else left & ~here
            if regime.ledger is not None and SWEPT_PEAK in {metric for _, metric in self.cells}:
                here, beyond = self._where_graphs_hold(regime, block, choices, values, here, shape)
                refused += beyond
            count = prod(shape) if here is True else int(np.count_nonzero(here))
            if not count:
                continue
            whole = count == prod(shape)
            if regime is not known[0]:
                # The next part probably has the same regime.
                known.remove(regime)
                known.insert(0, regime)
            inside = values if whole else {k: np.broadcast_to(v, shape)[here] for k, v in values.items()}
            if regime.ledger is None:
                example = {k: int(v.flat[0]) for k, v in inside.items()}
                why = self.points.refusal(choices, example)
                refused.append(RefusedGroup(why, _by_name(block, example), count))
                continue
            try:
                columns = regime.columns(self.cells, inside, shape if whole else (count,))
            except Incomplete as why:
                example = {k: int(v.flat[0]) for k, v in inside.items()}
                refused.append(RefusedGroup(why, _by_name(block, example), count))
                continue
            self._check(regime, choices, inside, columns)
            pieces.append(_RegimePart(here, columns))
        return self._join(block, values, shape, pieces, refused)

    def _where_graphs_hold(
        self,
        regime: Regime,
        block: GridBlock,
        choices: PointChoices,
        values: Mapping[str, Any],
        here: Any,
        shape: tuple[int, ...],
    ) -> tuple[Any, list[RefusedGroup]]:
        """Return a mask of the points at which a regime's exported graphs are valid, and the refused rest."""
        every = {k: np.broadcast_to(v, shape) for k, v in values.items()}
        left, refused = np.array(np.broadcast_to(here, shape)), list[RefusedGroup]()

        def numbers(at: Any) -> dict[str, int]:
            return {k: int(v[tuple(at)]) for k, v in every.items()}

        def refuse(mask: Any, why: CostproofError) -> None:
            if mask.any():
                example = _by_name(block, numbers(np.argwhere(mask)[0]))
                refused.append(RefusedGroup(why, example, int(np.count_nonzero(mask))))
                left[mask] = False

        try:
            export_graphs(regime, self.points, choices, numbers(np.argwhere(left)[-1]))
        except Incomplete as why:
            refuse(left.copy(), why)
            return left, refused
        unmet = {margin for call in regime.graphs for margin in call.holds}
        beyond = Incomplete(
            "the exported graph does not hold at these points: the model takes another branch there",
            where=SWEPT_PEAK,
            got="below 0: " + " or ".join(sorted(unmet)),
            fix="sweep the ranges on each side of this limit in commands of their own",
        )
        refuse(left & ~regime.graphs_hold(values, shape), beyond)
        single = _sizes_of_one(every, shape)
        for pattern in np.unique(single[left]):
            mask = left & (single == pattern)
            other = _graph_difference(regime, self.points, choices, numbers(np.argwhere(mask)[0]))
            if other is not None:
                refuse(mask, other)
        return left, refused

    def _check(
        self, regime: Regime, choices: PointChoices, inside: Mapping[str, Any], columns: Sequence[ExactColumn]
    ) -> None:
        """Compare the compiled costs of a new regime with its formulas, evaluated directly at one of its points.

        Raises:
            Bug: they differ.
        """
        if regime.checked or self.checks >= _MOST_CHECKS:
            return
        regime.checked = True
        self.checks += 1
        ledger = self.points.ledger(choices, {k: int(v.flat[-1]) for k, v in inside.items()})
        for (stage, metric), column in zip(self.cells, columns, strict=True):
            if metric == SWEPT_PEAK:
                continue  # compared with graphs that are exported at points
            expected = counted_cost(ledger, stage, metric)
            if last_of(column) != expected:
                got = last_of(column)
                raise Bug("a compiled formula is wrong", where=f"{stage} {metric}", expected=expected, got=got)

    def _join(
        self,
        block: GridBlock,
        values: Mapping[str, Any],
        shape: tuple[int, ...],
        pieces: Sequence[_RegimePart],
        refused: list[RefusedGroup],
    ) -> SweepPart:
        """Join the rows of all regimes in the order of the points."""
        points = prod(shape)
        rows = points - sum(r.count for r in refused)
        models: Any = np.zeros(shape if rows < points else (), bool)
        for piece in pieces if rows < points else ():
            models |= piece.where
        varied: dict[str, Any] = dict.fromkeys(self.names)
        for name, value in block.fixed.items():
            varied[name.given] = np.full(rows, None, object)
            varied[name.given].fill(value)
        for axis in block.axes:
            for name in axis.names:
                spread = np.broadcast_to(values[name.variable], shape)
                varied[name.given] = spread.reshape(-1) if rows == points else spread[models]
        costs: dict[str, ExactColumn] = {}
        for number, (stage, metric) in enumerate(self.cells):
            columns = [piece.columns[number] for piece in pieces]
            if len(columns) == 1:
                (column,) = columns
                costs[title(stage, metric)] = column.reshape(-1)
                continue
            small = all(isinstance(c, np.ndarray) and c.dtype == np.int64 for c in columns)
            joined: Any = np.zeros(shape, np.int64 if small else object)
            for piece, column in zip(pieces, columns, strict=True):
                joined[piece.where] = column.python() if isinstance(column, Int128Array) else column
            costs[title(stage, metric)] = joined.reshape(-1) if rows == points else joined[models]
        return SweepPart(points, rows, varied, costs, tuple(refused))


def _by_name(block: GridBlock, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the values at a point, by the names of the varying parameters."""
    names = (*block.fixed.items(), *((n, numbers[n.variable]) for a in block.axes for n in a.names))
    return {name.given: value for name, value in names}


def title(stage: str, metric: str) -> str:
    """Return the title of a cost column: ``prefill.flops``, or ``flops`` for the whole run."""
    return f"{stage}.{metric}" if stage else metric


def last_of(column: ExactColumn) -> int:
    """Return the last number of an exact integer column as a Python integer."""
    if isinstance(column, Int128Array):
        return int(column.high.flat[-1]) * 2**64 + int(column.low.flat[-1])
    return int(column.flat[-1])


# Graph peaks: expressions of an export, evaluated at all points at which the export holds. All sizes of an export but
# its symbols are constants, so these peaks are of one configuration, and only symbols of the export can vary.


def counted_cost(ledger: Ledger, stage: str, metric: Metric) -> int | None:
    """Return a cost of a stage, or of the whole run for an empty stage; communication on one device is 0."""
    if metric in COMM and metric not in ledger.metrics:
        return 0
    return ledger.stage_total(stage, metric) if stage else ledger.total(metric)


def metric_error(metric: Metric) -> BadInput | None:
    """Return the error if a metric cannot be a column, since it is unknown or neither formulas nor exports have it."""
    if metric in SUMMED or metric == SWEPT_PEAK:
        return None
    if metric not in PEAK_METRICS:
        return no_such("metric", metric, (*SUMMED, SWEPT_PEAK), where="--metric")
    fix = f"costproof peaks TARGET finds that of one workload; {SWEPT_PEAK} is swept"
    return BadInput("this peak cannot be swept, since it is observed in a run", where="--metric", got=metric, fix=fix)


def not_symbolic_errors(products: Iterable[Sequence[GridAxis]]) -> list[BadInput]:
    """Return an error for each name that cannot vary in a sweep of graph peaks.

    These are configuration keys, and numbers that are constants of an export.
    """
    names = {name for axes in products for axis in axes for name in axis.names}
    wrong = sorted(
        {
            n.given
            for n in names
            if (n.number or n.variable.startswith("key:"))
            and n.variable.removeprefix("setting:") not in _SYMBOLIC_SETTINGS
        }
    )
    expected = f"{', '.join(_SYMBOLIC_SETTINGS)}, or a setting that is not a number"
    return [
        BadInput(
            "a graph peak has no formula in this parameter, which is a constant of the graph",
            where=f"--over {name}",
            expected=expected,
        )
        for name in wrong
    ]


def export_graphs(
    regime: Regime, points: Evaluator[WithKeys], choices: PointChoices, numbers: Mapping[str, int]
) -> None:
    """Store, once for each regime, the exported calls of one of its points with graph peaks as formulas.

    Raises:
        BadInput: the target cannot be exported.
        Incomplete: a graph peak is not known as an expression.
    """
    if regime.graphs:
        return
    target, workload = points.run(choices, numbers)
    calls = measure_peaks(target, workload, eager=False)
    if {(c.stage, c.invocation) for c in calls} != {(i.stage, i.id) for i in target.invocations(workload)}:
        raise Incomplete(
            "not every call of the run has a graph, so its largest peak is unknown", where=workload.name,
            fix="leave out --metric graph_peak_bytes",
        )  # fmt: skip
    for call in calls:
        if not call.form:
            raise Incomplete(
                "the graph peak of a call has no formula in the swept settings",
                where=f"{call.stage} {call.invocation}".strip(),
                got="; ".join(call.notes) or "no size of its export is a symbol",
                fix="leave out --metric graph_peak_bytes; costproof peaks TARGET counts one workload",
            )
    regime.graphs = calls


def _sizes_of_one(values: PointValues, shape: tuple[int, ...]) -> Any:
    """Return, for each point, a bit mask of the sizes that equal 1, which the exporter specialises."""
    mask: Any = np.zeros(shape, np.int64)
    for i, name in enumerate(_SIZES):
        if name in values:
            mask = mask + (np.asarray(values[name]) == 1) * 2**i
    return mask


def _graph_difference(
    regime: Regime, points: Evaluator[WithKeys], choices: PointChoices, numbers: Mapping[str, int]
) -> Incomplete | None:
    """Compare a regime's graph peaks with those of a graph exported at one point; return the error if they differ.

    The comparison runs once for each combination of sizes that are 1.

    Returns:
        The error if they differ, else ``None``.
    """
    pattern = int(_sizes_of_one(numbers, ()))
    if pattern not in regime.compared:
        calls = measure_peaks(*points.run(choices, numbers), eager=False, forms=False)
        stages = ("", *dict.fromkeys(call.stage for call in calls))
        expected = regime.at([(stage, SWEPT_PEAK) for stage in stages], numbers)
        wrong = [
            f"{stage or 'whole run'}: {expected[stage, SWEPT_PEAK]:,} by the one in symbols, {exact(real)} by that one"
            for stage in reversed(stages)
            if expected[stage, SWEPT_PEAK] != (real := largest_graph_peak(calls, stage))
        ]
        where = ", ".join(f"{name.removeprefix('setting:')} {value}" for name, value in numbers.items())
        what = "the graph with symbolic sizes has another peak than the one exported at this point"
        regime.compared[pattern] = Incomplete(what, where=where, got=wrong[0]) if wrong else None
    return regime.compared[pattern]


def largest_graph_peak(calls: Iterable[CallPeaks], stage: str) -> int | None:
    """Return the largest graph peak of a stage (or of all, if empty): 0 without calls, ``None`` if one is unknown."""
    here = [None if c.graph is None else c.graph.bytes for c in calls if stage in ("", c.stage)]
    return largest(here) if here else 0


def has_graph_peak(
    regime: Regime, points: Evaluator[WithKeys], choices: PointChoices, numbers: Mapping[str, int]
) -> bool:
    """Return whether a graph peak can be computed at a point of a regime."""
    try:
        export_graphs(regime, points, choices, numbers)
    except Incomplete:
        return False
    held = regime.graphs_hold({name: np.asarray([value]) for name, value in numbers.items()}, (1,))
    return bool(np.all(held)) and _graph_difference(regime, points, choices, numbers) is None
