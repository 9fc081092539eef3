"""A sweep as it runs: blocks of points, in boxes, each point by the shape that it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costproof.ledger.errors import Bug, CostproofError, Incomplete, Problems
from costproof.ledger.metrics import Metric
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import counted_line, unknown_bytes
from costproof.models.target import WithKeys
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.exact_arrays import ExactColumn, Int128Array
from costproof.parametric.grid import PRESET, GridAxis, GridBlock, split_blocks
from costproof.parametric.regimes import CostCell, PointChoices, Regime
from costproof.run.count_lock import count_lock
from costproof.run.sweeping.graphs import SWEPT, beyond, differs, give_graphs, singles

if TYPE_CHECKING:
    import pandas

    from costproof.run.sweeping.files import Tally
    from costproof.run.sweeping.validate import Counted

POINTS: Final = 65_536
"""Of one part."""
_SEEN: Final = 2**24
_CHECKED: Final = 50
"""Shapes that are checked at one more point, by the formulas themselves."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Points that are not a model, or not a run of it, for one reason."""

    why: CostproofError
    """What the target says of the example."""
    example: Mapping[str, Any]
    count: int

    @property
    def reason(self) -> str:
        """The same for all of these points: what is wrong, and where, without their numbers."""
        problems = self.why.problems if isinstance(self.why, Problems) else (self.why,)
        return "; ".join(f"{p.what} ({p.where})" if p.where else p.what for p in problems)

    @property
    def says(self) -> str:
        """All that the target says of the example, in one line."""
        return " | ".join(p.line for p in (self.why.problems if isinstance(self.why, Problems) else (self.why,)))


@dataclass(frozen=True, slots=True)
class Part:
    """What was found at neighbouring points; those that are refused have no row."""

    points: int
    rows: int
    """Points that are models."""
    varied: Mapping[str, Any]
    """Name -> an array of values at every row; ``None`` where the name does not vary here."""
    costs: Mapping[str, ExactColumn]
    """``prefill.flops``, or ``flops`` of the whole run -> the number at every row."""
    refused: tuple[Refused, ...]


@dataclass(slots=True)
class Sweep:
    """All points of a sweep, and what is wanted there."""

    points: Evaluator[WithKeys]
    products: tuple[tuple[GridAxis, ...], ...]
    """One after another."""
    cells: tuple[CostCell, ...]
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The same at all points."""
    size: int = POINTS
    rules: tuple[str, ...] = ()
    """Files with operator rules, for points that are counted by their graphs."""
    checks: int = 0
    """How many shapes were compared with the formulas themselves."""

    def __len__(self) -> int:
        return sum(prod(map(len, axes)) for axes in self.products)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that varies, in the order of the columns."""
        return tuple(dict.fromkeys(name.given for axes in self.products for axis in axes for name in axis.names))

    @property
    def counted(self) -> str:
        """What its numbers leave out: :func:`~costproof.ledger.workload.counted_line` of what does not vary."""
        target = self.points.target
        try:
            workload = target.workload(self.preset, **self.settings)
        except CostproofError:  # what varies is not given here, and the rest may be no run without it
            workload = target.workload(self.preset)
        return counted_line(target.info(), workload)

    @property
    def incomplete(self) -> bool:
        """Whether a column is of bytes that are not those of the checkpoint, since that is quantised."""
        return bool(unknown_bytes(self.points.target.info()) & {metric for _, metric in self.cells})

    @property
    def titles(self) -> tuple[str, ...]:
        """Of the columns of costs."""
        return tuple(title(stage, metric) for stage, metric in self.cells)

    def stream(self, out: Callable[[str], object]) -> Tally:
        """Give all rows as CSV, part by part."""
        from costproof.run.sweeping.files import Tally, csv_head, csv_text

        found = Tally()
        out(csv_head(self))
        for part in self.parts():
            found.take(part)
            out(csv_text(part, self.names))
        return found

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw lines per stage, stacked areas, heat maps: :func:`costproof.run.sweeping.plots.plot`."""
        from costproof.run.sweeping.plots import plot

        plot(self, Path(path))

    def validate(
        self,
        points: int,
        *,
        seed: int = 1,
        jobs: int = -1,
        cluster: str | None = None,
        progress: Progress = silent,
    ) -> tuple[Counted, ...]:
        """Count random points by their exported graphs: :func:`costproof.run.sweeping.validate.validate`."""
        from costproof.run.sweeping.validate import validate

        with count_lock(self.rules):
            return validate(self, points, seed=seed, jobs=jobs, cluster=cluster, progress=progress)

    def count(self) -> Tally:
        """Look at every point, and compute nothing: how many there are, and which are refused."""
        from costproof.run.sweeping.files import Tally

        found = Tally()
        for part in replace(self, cells=()).parts():
            found.take(part)
        return found

    def frame(self) -> pandas.DataFrame:
        """All rows. A column whose numbers are longer than int64 holds Python's integers."""
        import pandas

        parts = list(self.parts())
        columns: dict[str, Any] = {}
        for name in self.names:
            found = [p.varied[name] if p.varied[name] is not None else np.full(p.rows, None, object) for p in parts]
            columns[name] = np.concatenate(found)
        for name in self.titles:
            pieces = [p.costs[name] for p in parts]
            plain = [c.python() if isinstance(c, Int128Array) else c for c in pieces]
            columns[name] = np.concatenate(plain)
        return pandas.DataFrame(columns)

    def write(self, path: str | os.PathLike[str], progress: Progress = silent) -> Tally:
        """Write all rows to a file, by its ending CSV, JSON or Parquet; an interrupted one goes on where it stopped.

        Raises:
            BadInput: another ending, or a place that cannot be written to.
            Incomplete: Parquet without pyarrow.
        """
        from costproof.run.sweeping.files import write

        return write(self, Path(path), progress)

    def parts(self, skip: int = 0) -> Iterator[Part]:
        """Everything, in parts; the first ``skip`` parts are left out."""
        number = 0
        # glibc gives arrays of some 100 kB back to the system and gets them zeroed again, unless it has seen a larger
        # one go. Nothing is ever written to this one.
        np.empty(_SEEN, np.uint8)
        for axes in self.products:
            for block in split_blocks(axes):
                place: PointChoices | None = None
                for values, shape in block.boxes(self.size):
                    number += 1
                    if number <= skip:
                        continue
                    place = place or self.place(block)
                    with count_lock(self.rules):
                        part = self._part(block, place, values, shape)
                    yield part

    def place(self, block: GridBlock) -> PointChoices:
        """What the points of a block have in common, and anything for the numbers."""
        fixed = {name.variable: value for name, value in block.fixed.items()}
        fixed |= {n.variable: int(c[0]) for axis in block.axes for n, c in zip(axis.names, axis.columns, strict=True)}
        settings = {**self.settings, **{k[8:]: v for k, v in fixed.items() if k.startswith("setting:")}}
        keys = {k[4:]: v for k, v in fixed.items() if k.startswith("key:")}
        return self.points.choices(keys, fixed.get(PRESET, self.preset), settings)

    def _part(self, block: GridBlock, place: PointChoices, values: dict[str, Any], shape: tuple[int, ...]) -> Part:
        known = self.points.known(place, values)
        queue = list(known)
        left: Any = True
        pieces: list[_Piece] = []
        refused: list[Refused] = []
        while np.any(left):
            if not queue:
                at = np.unravel_index(int(np.argmax(np.broadcast_to(left, shape))), shape)
                queue.append(
                    self.points.trace(place, {k: int(np.broadcast_to(v, shape)[at]) for k, v in values.items()})
                )
            found = queue.pop(0)
            mask = found.mask(values)
            if mask is False:
                continue
            here = left if mask is True else np.logical_and(left, np.broadcast_to(mask, shape))
            if not np.any(here):
                continue
            left = False if here is left else left & ~here
            if found.ledger is not None and SWEPT in self._metrics:
                here, beyond = self._with_graphs(found, block, place, values, here, shape)
                refused += beyond
            count = prod(shape) if here is True else int(np.count_nonzero(here))
            if not count:
                continue
            whole = count == prod(shape)
            if found is not known[0]:
                # The next part is likely to be of the same shape.
                known.remove(found)
                known.insert(0, found)
            inside = values if whole else {k: np.broadcast_to(v, shape)[here] for k, v in values.items()}
            if found.ledger is None:
                refused.append(self._refusal(block, place, inside, count))
            else:
                columns = found.columns(self.cells, inside, shape if whole else (count,))
                self._check(found, place, inside, columns)
                pieces.append(_Piece(here, columns))
        return self._joined(block, values, shape, pieces, refused)

    def _refusal(self, block: GridBlock, place: PointChoices, inside: Mapping[str, Any], count: int) -> Refused:
        """Why some points are refused, by the words of the first."""
        first = {k: int(v.flat[0]) for k, v in inside.items()}
        return Refused(self.points.refusal(place, first), _example(block, first), count)

    @property
    def _metrics(self) -> set[Metric]:
        return {metric for _, metric in self.cells}

    def _with_graphs(
        self,
        found: Regime,
        block: GridBlock,
        place: PointChoices,
        values: Mapping[str, Any],
        here: Any,
        shape: tuple[int, ...],
    ) -> tuple[Any, list[Refused]]:
        """Give a shape its graphs; at which of its points they hold, and what is to be said of the others."""
        every = {k: np.broadcast_to(v, shape) for k, v in values.items()}
        left, refused = np.array(np.broadcast_to(here, shape)), list[Refused]()

        def numbers(at: Any) -> dict[str, int]:
            return {k: int(v[tuple(at)]) for k, v in every.items()}

        def refuse(mask: Any, why: CostproofError) -> None:
            if mask.any():
                example = _example(block, numbers(np.argwhere(mask)[0]))
                refused.append(Refused(why, example, int(np.count_nonzero(mask))))
                left[mask] = False

        try:
            give_graphs(found, self.points, place, numbers(np.argwhere(left)[-1]))
        except Incomplete as why:
            refuse(left.copy(), why)
            return left, refused
        refuse(left & ~found.graphs_hold(values, shape), beyond(found))
        single = singles(every, shape)
        for pattern in np.unique(single[left]):
            mask = left & (single == pattern)
            other = differs(found, self.points, place, numbers(np.argwhere(mask)[0]))
            if other is not None:
                refuse(mask, other)
        return left, refused

    def _check(
        self, found: Regime, place: PointChoices, inside: Mapping[str, Any], columns: Sequence[ExactColumn]
    ) -> None:
        """Compare a new shape with the formulas themselves, at the last of these points.

        Raises:
            Bug: they do not agree.
        """
        if found.checked or self.checks >= _CHECKED:
            return
        found.checked = True
        self.checks += 1
        last = {k: int(v.flat[-1]) for k, v in inside.items()}
        ledger = self.points.ledger(place, last)
        for (stage, metric), column in zip(self.cells, columns, strict=True):
            if metric == SWEPT:
                continue  # it was held against graphs that are exported at points
            sure = ledger.stage_total(stage, metric) if stage else ledger.total(metric)
            if last_of(column) != sure:
                raise Bug("a compiled formula is wrong", where=f"{stage} {metric}", expected=sure, got=last_of(column))

    def _joined(
        self,
        block: GridBlock,
        values: Mapping[str, Any],
        shape: tuple[int, ...],
        pieces: Sequence[_Piece],
        refused: list[Refused],
    ) -> Part:
        """The rows of the pieces, in the order of the points."""
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
            exact = all(isinstance(c, np.ndarray) and c.dtype == np.int64 for c in columns)
            made: Any = np.zeros(shape, np.int64 if exact else object)
            for piece, column in zip(pieces, columns, strict=True):
                made[piece.where] = column.python() if isinstance(column, Int128Array) else column
            costs[title(stage, metric)] = made.reshape(-1) if rows == points else made[models]
        return Part(points, rows, varied, costs, tuple(refused))


@dataclass(frozen=True, slots=True)
class _Piece:
    """The points of one shape in a box, and their costs."""

    where: Any
    columns: list[ExactColumn]


def _example(block: GridBlock, numbers: Mapping[str, int]) -> dict[str, Any]:
    """A point, by the names of what varies."""
    names = (*block.fixed.items(), *((n, numbers[n.variable]) for a in block.axes for n in a.names))
    return {name.given: value for name, value in names}


def title(stage: str, metric: str) -> str:
    """The name of a column: ``prefill.flops``, or ``flops`` of the whole run."""
    return f"{stage}.{metric}" if stage else metric


def last_of(column: ExactColumn) -> int:
    """The last number of a column."""
    if isinstance(column, Int128Array):
        return int(column.high.flat[-1]) * 2**64 + int(column.low.flat[-1])
    return int(column.flat[-1])
