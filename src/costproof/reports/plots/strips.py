"""Draw the costs of a sweep: lines per stage over a setting, stacked areas, and a heat map over two settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.files import MAX_DIGITS, csv_rows
from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.schema import from_data
from costproof.reports.plots.figure import colour, new_figure, render_figure, style
from costproof.views.files import COUNTED, SWEEP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHOLE: Final = "whole run"
_WIDE: Final = 30
"""Ratio of largest to smallest value above which an axis is logarithmic."""
_SIDE: Final = (4.4, 3.1)
"""Width and height of a panel, in inches."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A metric over one varying setting, with all other settings as in the base point."""

    name: str
    at: Sequence[Any]
    """Valid values of the setting."""
    stages: Mapping[str, Sequence[int]]
    """The metric at these values by stage; :data:`WHOLE` stands for the whole run."""


@dataclass(frozen=True, slots=True)
class Heat:
    """A metric of the whole run over two varying settings; ``None`` where the settings are invalid."""

    names: tuple[str, str]
    at: tuple[Sequence[Any], Sequence[Any]]
    values: Sequence[Sequence[int | None]]
    """Values of the metric, one row for each value of the first setting."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The charts of one metric, side by side."""

    metric: str
    unit: str
    lines: tuple[Lines, ...]
    stacked: bool
    """Whether the first lines are also shown as stacked areas."""
    heat: Heat | None


def draw(strips: Sequence[Strip], title: str, kind: str) -> bytes:
    """Return a picture as SVG or PNG; equal strips give equal bytes.

    Args:
        title: above everything, such as the base point.
    """
    columns = max(len(s.lines) + s.stacked + (s.heat is not None) for s in strips)
    with style():
        figure = new_figure(_SIDE[0] * columns, _SIDE[1] * len(strips) + 0.5, title)
        panels = figure.subplots(len(strips), columns, squeeze=False)
        for strip, row in zip(strips, panels, strict=True):
            free = iter(row)
            for lines in strip.lines:
                _lines(next(free), lines, strip)
            if strip.stacked:
                _stacked(next(free), strip.lines[0], strip)
            if strip.heat is not None:
                _heat(figure, next(free), strip.heat, strip)
            for left in free:
                left.set_axis_off()
        return render_figure(figure, kind)


def _lines(panel: Axes, lines: Lines, strip: Strip) -> None:
    x = _positions(panel, lines.name, lines.at)
    panel.grid(alpha=0.3)
    for number, (stage, values) in enumerate(lines.stages.items()):
        if any(values):
            # The whole run is broad and pale: a stage that is nearly all of it lies on top and is seen.
            whole: dict[str, Any] = {"color": "#bbbbbb", "linewidth": 5.0, "solid_capstyle": "round"}
            own: dict[str, Any] = {"color": colour(number - 1), "linewidth": 1.4, "marker": "." if len(x) <= 40 else ""}
            panel.plot(x, list(map(float, values)), label=stage, **(whole if stage == WHOLE else own))
    positive = [v for values in lines.stages.values() for v in values if v > 0]
    if positive and max(positive) > _WIDE * min(positive):
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    _labelled(panel, strip)
    panel.set_title(f"{strip.metric} over {lines.name}")
    panel.legend()


def _stacked(panel: Axes, lines: Lines, strip: Strip) -> None:
    x = _positions(panel, lines.name, lines.at, log=False)
    panel.grid(alpha=0.3)
    every = [stage for stage in lines.stages if stage != WHOLE]
    own = {stage: list(map(float, lines.stages[stage])) for stage in every if any(lines.stages[stage])}
    if own:
        colours = [colour(every.index(stage)) for stage in own]
        panel.stackplot(x, list(own.values()), labels=list(own), colors=colours, alpha=0.85)
        panel.legend(loc="upper left")
    _labelled(panel, strip)
    panel.set_title(f"{strip.metric} of the stages, stacked")


def _heat(figure: Any, panel: Axes, heat: Heat, strip: Strip) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import EngFormatter

    known = [v for row in heat.values for v in row if v is not None and v > 0]
    wide = bool(known) and max(known) > _WIDE * min(known)
    values = [[float("nan") if v is None else float(v) for v in row] for row in heat.values]
    image = panel.imshow(values, aspect="auto", origin="lower", norm=LogNorm() if wide else None)
    for set_ticks, at in ((panel.set_yticks, heat.at[0]), (panel.set_xticks, heat.at[1])):
        shown = sorted({round(i * (len(at) - 1) / 5) for i in range(6)})
        set_ticks(shown, [_tick_text(at[i]) for i in shown])
    panel.set_ylabel(heat.names[0])
    panel.set_xlabel(heat.names[1])
    panel.set_title(f"{strip.metric} of the whole run")
    figure.colorbar(image, ax=panel, format=EngFormatter(strip.unit))


def _positions(panel: Axes, name: str, at: Sequence[Any], *, log: bool = True) -> list[float]:
    """Return the positions of values on an axis: integers at their value, other values evenly spaced."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    panel.set_xlabel(name)
    if all(type(v) is int for v in at):
        if log and min(at) > 0 and max(at) > _WIDE * min(at):
            panel.set_xscale("log", base=2)
            panel.xaxis.set_minor_locator(NullLocator())
        else:
            panel.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        panel.tick_params(axis="x", labelrotation=30 if max(at) >= 10_000 else 0)
        return list(map(float, at))
    panel.set_xticks(range(len(at)), [_tick_text(v) for v in at])
    return list(map(float, range(len(at))))


def _tick_text(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)


def _labelled(panel: Axes, strip: Strip) -> None:
    from matplotlib.ticker import EngFormatter

    panel.yaxis.set_major_formatter(EngFormatter(strip.unit))


POINTS: Final = 200
"""Maximum number of points of a line, spread evenly."""
HEAT: Final = 60
"""Maximum number of values on each side of a heat map."""
LINES: Final = 4
"""Maximum number of line charts for one metric."""
_STRIPS: Final = 6
_MAKE_AGAIN: Final = "costproof sweep TARGET --over NAME=VALUES -o FILE.json"

Group = tuple[int, ...]
"""Indices of table columns whose values vary together."""


@dataclass(frozen=True, slots=True)
class SweepTable:
    """Some or all rows of a sweep, as a table of settings and costs."""

    name: str
    """Name of the target."""
    varied: tuple[str, ...]
    costs: tuple[str, ...]
    """Titles of the cost columns: ``flops`` of the whole run, ``prefill.flops`` of a stage."""
    rows: Sequence[Sequence[Any]]
    """Rows, each with the values of the varying settings, then the costs."""


def of_json(data: object, where: str) -> SweepTable:
    """Return the rows of a parsed ``sweep.json``.

    Raises:
        BadInput, Problems: it is not one.
    """
    found = from_data(data, SWEEP, where=where, make_again=_MAKE_AGAIN)
    at = _first_cost(found.columns, where)
    for number, row in enumerate(found.data):
        if len(row) != len(found.columns) or not all(type(v) is int and v >= 0 for v in row[at:]):
            raise BadInput("this is not a row of a sweep", where=f"$.data[{number}] in {where}", fix=_MAKE_AGAIN)
    return SweepTable(found.target.name, found.columns[:at], found.columns[at:], found.data)


def of_csv(path: Path) -> SweepTable:
    """Return the rows of a sweep in CSV; the file's name is used as the target's name, which CSV lacks.

    Raises:
        BadInput: it is not one.
    """
    lines = csv_rows(path, what="sweep")
    _, columns = next(lines, (0, []))
    ends = len(columns) - (columns[-1:] == [COUNTED])
    at = _first_cost(columns[:ends], str(path))
    rows = []
    for number, line in lines:
        costs = line[at:ends]
        if len(line) != len(columns) or not all(map(_is_integer, costs)):
            raise BadInput("this is not a row of a sweep", where=f"{path}, line {number}", fix=_MAKE_AGAIN)
        rows.append([*(int(v) if _is_integer(v) else v for v in line[:at]), *map(int, costs)])
    return SweepTable(path.stem, tuple(columns[:at]), tuple(columns[at:ends]), rows)


def _is_integer(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) <= MAX_DIGITS


def _first_cost(columns: Sequence[str], where: str) -> int:
    """Return the index of the first cost column; the columns before it are varying settings."""
    at = next((i for i, c in enumerate(columns) if _cell(c)[1] in EVERY_METRIC), 0)
    if not at or any(_cell(c)[1] not in EVERY_METRIC for c in columns[at:]):
        got = ", ".join(columns[:8]) or "nothing"
        raise BadInput("this is not a sweep", where=where, expected="a column that varies, then costs", got=got[:200])
    return at


def _cell(title: str) -> tuple[str, str]:
    """Return (stage, metric) from the title of a cost column."""
    stage, _, metric = title.rpartition(".")
    return stage, metric


def strips(table: SweepTable) -> tuple[tuple[Strip, ...], str]:
    """Return the charts to draw, and a title that states the settings of the first row, the base point.

    A panel varies one name, or names in step, alone. With one that varies, areas are stacked, unless stages share what
    they have; with several, a heat map shows the whole run over the first two.

    Raises:
        BadInput: there is no row.
    """
    if not table.rows:
        raise BadInput(
            "the sweep has no valid point to draw", got="all points were refused",
            fix="costproof sweep … --dry-run lists the reasons",
        )  # fmt: skip
    base = table.rows[0]
    groups = _joint_columns(table)
    varied = [g for g in groups if len({_group_value(row, g) for row in table.rows}) > 1] or groups[:1]
    along = [_spread(_rows_like(table.rows, base, (g,), groups), g, POINTS) for g in varied[:LINES]]
    sides = (varied[0], varied[1]) if len(varied) > 1 else None
    made = []
    for metric in list(dict.fromkeys(_cell(title)[1] for title in table.costs))[:_STRIPS]:
        info = EVERY_METRIC[metric]
        heat = None if sides is None else _plane(table, base, sides, groups, metric)
        lines = (_rows_along(table, g, rows, metric) for g, rows in zip(varied, along, strict=False))
        unit = {"bytes": "B", "FLOP": "FLOP"}.get(info.unit, "")
        made.append(
            Strip(info.title, unit, tuple(lines), sides is None and not (info.stage_wide or info.largest), heat)
        )
    fixed = ", ".join(f"{_group_name(table, g)} {_group_value(base, g)}" for g in groups)
    return tuple(made), table.name + (f", around {fixed}" if sides is not None else "")


def _joint_columns(table: SweepTable) -> list[Group]:
    """Return the varying columns in groups; columns whose values correspond one to one form a group."""
    found: list[Group] = []
    for i in range(len(table.varied)):
        for number, group in enumerate(found):
            pairs = {(row[group[0]], row[i]) for row in table.rows}
            if len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > 1:
                found[number] = (*group, i)
                break
        else:
            found.append((i,))
    return found


def _rows_like(rows: Sequence[Any], base: Any, free: tuple[Group, ...], groups: list[Group]) -> list[Any]:
    """Return the rows that equal the base row in all column groups except the ``free`` ones."""
    fixed = [i for g in groups if g not in free for i in g]
    return [row for row in rows if all(row[i] == base[i] for i in fixed)]


def _spread(rows: list[Any], group: Group, most: int) -> list[Any]:
    """Return at most ``most`` rows, evenly spaced and including both ends; numbers are sorted."""
    whole = all(type(_group_value(row, group)) is int for row in rows)
    ordered = sorted(rows, key=lambda row: _group_value(row, group)) if whole else rows
    last = len(ordered) - 1
    return ordered if last < most else [ordered[i] for i in sorted({i * last // (most - 1) for i in range(most)})]


def _rows_along(table: SweepTable, group: Group, rows: list[Any], metric: str) -> Lines:
    """Return the chart lines of a metric at these rows, over the values of a column group."""
    at = {t: i + len(table.varied) for i, t in enumerate(table.costs) if _cell(t)[1] == metric}
    stages = {_cell(title)[0] or WHOLE: [row[i] for row in rows] for title, i in at.items()}
    return Lines(_group_name(table, group), [_group_value(row, group) for row in rows], stages)


def _plane(table: SweepTable, base: Any, sides: tuple[Group, Group], groups: list[Group], metric: str) -> Heat | None:
    """Return the heat map of the whole run's metric over two column groups; ``None`` if the metric is constant."""
    if metric not in table.costs:
        return None
    cost = len(table.varied) + table.costs.index(metric)
    plane = _rows_like(table.rows, base, sides, groups)
    known = {(_group_value(row, sides[0]), _group_value(row, sides[1])): row[cost] for row in plane}
    if len(set(known.values())) < 2:
        return None
    firsts = [{_group_value(row, side): row for row in reversed(plane)} for side in sides]
    at = [
        [_group_value(row, side) for row in _spread([*reversed(one.values())], side, HEAT)]
        for one, side in zip(firsts, sides, strict=True)
    ]
    values = [[known.get((x, y)) for y in at[1]] for x in at[0]]
    return Heat((_group_name(table, sides[0]), _group_name(table, sides[1])), (at[0], at[1]), values)


def _group_value(row: Sequence[Any], group: Group) -> Any:
    """Return a row's value in a column group: an integer, or the joined texts of all values."""
    found = [row[i] for i in group]
    return found[0] if len(found) == 1 and type(found[0]) is int else "/".join(map(_value_text, found))


def _value_text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _group_name(table: SweepTable, group: Group) -> str:
    return "/".join(table.varied[i] for i in group)
