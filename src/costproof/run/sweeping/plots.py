"""What a picture of a sweep shows: the lines through one point of it, and a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.extras import require
from costproof.ledger.metrics import EVERY_METRIC
from costproof.reports.sweep_plot import WHOLE, Heat, Lines, Strip, draw
from costproof.run.sweeping.axes import Axis
from costproof.run.sweeping.driver import Sweep, title
from costproof.run.sweeping.files import numbers

KINDS: Final = (".svg", ".png")
_POINTS: Final = 200
"""Of one line, spread evenly."""
_HEAT: Final = 60
"""Of each side of a heat map."""
_LINES: Final = 4
"""Panels of lines."""
_STRIPS: Final = 6


def plot(sweep: Sweep, path: Path) -> None:
    """Draw a sweep; of several products the first.

    Raises:
        BadInput: another ending, no point is a model, or the place cannot be written to.
        Incomplete: matplotlib is not installed.
    """
    if path.suffix not in KINDS:
        raise BadInput("no such kind of picture", where=str(path), expected=" or ".join(KINDS))
    require("sweep", "drawing a sweep", "matplotlib")
    made, heading = strips(sweep)
    try:
        draw(made, heading, path)
    except OSError as error:
        raise BadInput("cannot write the picture", where=str(path), got=error.strerror or str(error)) from error


def strips(sweep: Sweep) -> tuple[tuple[Strip, ...], str]:
    """What to draw, and above it the point that all lines go through: the first that is a model.

    A panel varies one name, or names in step, alone. With one that varies, areas are stacked, unless stages share what
    they have; with several, a heat map shows the whole run over the first two.
    """
    base, at = _base(sweep)
    varied = [i for i, axis in enumerate(base) if len(axis) > 1] or [0]
    panels = varied[:_LINES]
    frames = [_rows(sweep, _cut(base, at, {i: _spread(len(base[i]), _POINTS)})) for i in panels]
    plane = None
    if len(varied) > 1:
        one, other = varied[:2]
        small = _cut(base, at, {i: _spread(len(base[i]), _HEAT) for i in (one, other)})
        plane = (small[one], small[other]), _rows(sweep, small)
    made = []
    for metric in list(dict.fromkeys(metric for _, metric in sweep.cells))[:_STRIPS]:
        info = EVERY_METRIC[metric]
        made.append(
            Strip(
                metric=info.title,
                unit={"bytes": "B", "FLOP": "FLOP"}.get(info.unit, ""),
                lines=tuple(_lines(sweep, base[i], rows, metric) for i, rows in zip(panels, frames, strict=True)),
                stacked=plane is None and not info.stage_wide,
                heat=None if plane is None else _heat(*plane, metric),
            )
        )
    fixed = ", ".join(f"{_name(a)} {'/'.join(str(c[i]) for c in a.columns)}" for a, i in zip(base, at, strict=True))
    return tuple(made), sweep.points.target.name + (f", around {fixed}" if plane is not None else "")


def _base(sweep: Sweep) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    """The axes of the first product, and where on them the first model lies."""
    axes = sweep.products[0]
    for part in replace(sweep, products=(axes,), cells=()).parts():
        if part.rows:
            first = {name: values[0] for name, values in part.varied.items() if values is not None}
            return axes, tuple(_index(axis, first) for axis in axes)
    raise BadInput("nothing to draw", where="the sweep", got="no point is a model", fix="see --dry-run")


def _index(axis: Axis, values: Mapping[str, Any]) -> int:
    wanted = tuple(values[name.given] for name in axis.names)
    return next(i for i in range(len(axis)) if tuple(c[i] for c in axis.columns) == wanted)


def _spread(length: int, most: int) -> list[int]:
    """At most so many places of an axis, evenly, with both ends."""
    return list(range(length)) if length <= most else sorted({i * (length - 1) // (most - 1) for i in range(most)})


def _cut(base: Sequence[Axis], at: Sequence[int], kept: Mapping[int, list[int]]) -> tuple[Axis, ...]:
    """The axes with these places of some, and that of the base point of the others."""
    return tuple(
        Axis(axis.names, tuple([column[j] for j in kept.get(i, [at[i]])] for column in axis.columns))
        for i, axis in enumerate(base)
    )


Rows = list[tuple[dict[str, Any], dict[str, int]]]
"""Values by name, and costs by title, of every model."""


def _rows(sweep: Sweep, axes: tuple[Axis, ...]) -> Rows:
    """The models among a few points."""
    cells = tuple(dict.fromkeys((*(("", metric) for _, metric in sweep.cells), *sweep.cells)))
    found: Rows = []
    for part in replace(sweep, products=(axes,), cells=cells).parts():
        values = zip(*(column.tolist() for column in part.varied.values()), strict=True)
        costs = zip(*(numbers(column) for column in part.costs.values()), strict=True)
        for value, cost in zip(values, costs, strict=True):
            at = dict(zip(part.varied, value, strict=True))
            found.append((at, dict(zip(part.costs, cost, strict=True))))
    return found


def _lines(sweep: Sweep, axis: Axis, rows: Rows, metric: str) -> Lines:
    """A metric at the models along an axis."""
    titles = {WHOLE: metric} | {stage: title(stage, metric) for stage, m in sweep.cells if m == metric and stage}
    at = [_at(axis, values) for values, _ in rows]
    return Lines(_name(axis), at, {stage: [costs[t] for _, costs in rows] for stage, t in titles.items()})


def _heat(sides: tuple[Axis, Axis], rows: Rows, metric: str) -> Heat:
    """A metric at the models of a plane; the order along a side is that of the axis."""
    one, other = sides
    known = {(_at(one, values), _at(other, values)): costs[metric] for values, costs in rows}
    at = tuple([_at(axis, _values(axis, i)) for i in range(len(axis))] for axis in sides)
    return Heat((_name(one), _name(other)), (at[0], at[1]), [[known.get((x, y)) for y in at[1]] for x in at[0]])


def _values(axis: Axis, i: int) -> dict[str, Any]:
    return {name.given: column[i] for name, column in zip(axis.names, axis.columns, strict=True)}


def _at(axis: Axis, values: Mapping[str, Any]) -> Any:
    """Where a point stands on an axis: a number, or a text of all its names."""
    found = [values[name.given] for name in axis.names]
    return found[0] if len(found) == 1 and type(found[0]) is int else "/".join(map(str, found))


def _name(axis: Axis) -> str:
    return "/".join(name.given for name in axis.names)
