"""The points of a sweep that its picture shows: those along each name through the first model, and a plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.writing import write_named
from costproof.parametric.grid import GridAxis
from costproof.reports.plots.figure import KINDS
from costproof.reports.plots.strips import draw
from costproof.reports.plots.table import HEAT, LINES, POINTS, Table, strips
from costproof.run.sweeping.driver import Sweep, title
from costproof.run.sweeping.files import rows_of

_ENDINGS: Final = tuple(f".{kind}" for kind in KINDS)


def plot(sweep: Sweep, path: Path) -> None:
    """Draw a sweep; of several products the first.

    Raises:
        BadInput: another ending, no point is a model, or the place cannot be written to.
        Incomplete: matplotlib is not installed.
    """
    if path.suffix not in _ENDINGS:
        raise BadInput("no such kind of picture", where=str(path), expected=" or ".join(_ENDINGS))
    write_named(path, draw(*strips(table(sweep)), path.suffix[1:]))


def table(sweep: Sweep) -> Table:
    """The rows that a picture shows, evaluated anew: a sweep may have millions of others.

    Raises:
        BadInput: no point is a model.
    """
    base, at = _base(sweep)
    varied = [i for i, axis in enumerate(base) if len(axis) > 1] or [0]
    cuts = [{i: _spread(len(base[i]), POINTS)} for i in varied[:LINES]]
    if len(varied) > 1:
        cuts.append({i: _spread(len(base[i]), HEAT) for i in varied[:2]})
    # The costs of the whole run are there, whatever columns were asked for.
    cells = tuple(dict.fromkeys((*(("", metric) for _, metric in sweep.cells), *sweep.cells)))
    rows = dict.fromkeys(row for kept in cuts for row in _rows(replace(sweep, cells=cells), _cut(base, at, kept)))
    names = tuple(name.given for axis in base for name in axis.names)
    first = tuple(column[i] for axis, i in zip(base, at, strict=True) for column in axis.columns)
    ordered = sorted(rows, key=lambda row: row[: len(names)] != first)
    return Table(sweep.points.target.name, names, tuple(title(s, m) for s, m in cells), ordered)


def _base(sweep: Sweep) -> tuple[tuple[GridAxis, ...], tuple[int, ...]]:
    """The axes of the first product, and where on them the first model lies."""
    axes = sweep.products[0]
    for part in replace(sweep, products=(axes,), cells=()).parts():
        if part.rows:
            first = {name: values[0] for name, values in part.varied.items() if values is not None}
            return axes, tuple(_index(axis, first) for axis in axes)
    raise BadInput("nothing to draw", where="the sweep", got="no point is a model", fix="see --dry-run")


def _index(axis: GridAxis, values: Mapping[str, Any]) -> int:
    wanted = tuple(values[name.given] for name in axis.names)
    return next(i for i in range(len(axis)) if tuple(c[i] for c in axis.columns) == wanted)


def _spread(length: int, most: int) -> list[int]:
    """At most so many places of an axis, evenly, with both ends."""
    return list(range(length)) if length <= most else sorted({i * (length - 1) // (most - 1) for i in range(most)})


def _cut(base: Sequence[GridAxis], at: Sequence[int], kept: Mapping[int, list[int]]) -> tuple[GridAxis, ...]:
    """The axes with these places of some, and that of the base point of the others."""
    return tuple(
        GridAxis(axis.names, tuple([column[j] for j in kept.get(i, [at[i]])] for column in axis.columns))
        for i, axis in enumerate(base)
    )


def _rows(sweep: Sweep, axes: tuple[GridAxis, ...]) -> Iterator[tuple[Any, ...]]:
    """The models among a few points."""
    names = [name.given for axis in axes for name in axis.names]
    for part in replace(sweep, products=(axes,)).parts():
        yield from rows_of(part, names)
