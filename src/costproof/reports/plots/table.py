"""What a picture of a sweep shows: the lines through one point of it, and a plane. Read off its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.files import MAX_DIGITS, csv_rows
from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.schema import from_data
from costproof.reports.plots.strips import WHOLE, Heat, Lines, Strip
from costproof.views.sweep_file import SWEEP

POINTS: Final = 200
"""Of one line, spread evenly."""
HEAT: Final = 60
"""Of each side of a heat map."""
LINES: Final = 4
"""Panels of lines."""
_STRIPS: Final = 6
_MAKE_AGAIN: Final = "costproof sweep TARGET --over NAME=VALUES -o FILE.json"

Group = tuple[int, ...]
"""Columns that vary in step."""


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a sweep, or some of them."""

    name: str
    """Of the target."""
    varied: tuple[str, ...]
    costs: tuple[str, ...]
    """``flops`` of the whole run, ``prefill.flops`` of a stage."""
    rows: Sequence[Sequence[Any]]
    """Values of what varies, then costs."""


def of_json(data: object, where: str) -> Table:
    """The rows of ``sweep.json``.

    Raises:
        BadInput, Problems: it is not one.
    """
    found = from_data(data, SWEEP, where=where, make_again=_MAKE_AGAIN)
    at = _first_cost(found.columns, where)
    for number, row in enumerate(found.data):
        if len(row) != len(found.columns) or not all(type(v) is int and v >= 0 for v in row[at:]):
            raise BadInput("this is not a row of a sweep", where=f"$.data[{number}] in {where}", fix=_MAKE_AGAIN)
    return Table(found.target.name, found.columns[:at], found.columns[at:], found.data)


def of_csv(path: Path) -> Table:
    """The rows of a sweep in CSV, which does not say of which target they are: the name of the file stands for it.

    Raises:
        BadInput: it is not one.
    """
    lines = csv_rows(path, what="sweep")
    _, columns = next(lines, (0, []))
    at = _first_cost(columns, str(path))
    rows = []
    for number, line in lines:
        costs = line[at:]
        if len(line) != len(columns) or not all(map(_is_integer, costs)):
            raise BadInput("this is not a row of a sweep", where=f"{path}, line {number}", fix=_MAKE_AGAIN)
        rows.append([*(int(v) if _is_integer(v) else v for v in line[:at]), *map(int, costs)])
    return Table(path.stem, tuple(columns[:at]), tuple(columns[at:]), rows)


def _is_integer(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) <= MAX_DIGITS


def _first_cost(columns: Sequence[str], where: str) -> int:
    """Where the columns of costs begin: what varies stands before them."""
    at = next((i for i, c in enumerate(columns) if _cell(c)[1] in EVERY_METRIC), 0)
    if not at or any(_cell(c)[1] not in EVERY_METRIC for c in columns[at:]):
        got = ", ".join(columns[:8]) or "nothing"
        raise BadInput("this is not a sweep", where=where, expected="a column that varies, then costs", got=got[:200])
    return at


def _cell(title: str) -> tuple[str, str]:
    """(stage, metric) of a column."""
    stage, _, metric = title.rpartition(".")
    return stage, metric


def strips(table: Table) -> tuple[tuple[Strip, ...], str]:
    """What to draw, and above it the point that all lines go through: the first row.

    A panel varies one name, or names in step, alone. With one that varies, areas are stacked, unless stages share what
    they have; with several, a heat map shows the whole run over the first two.

    Raises:
        BadInput: there is no row.
    """
    if not table.rows:
        raise BadInput("nothing to draw", where="the sweep", got="no point is a model", fix="see --dry-run")
    base = table.rows[0]
    groups = _in_step(table)
    varied = [g for g in groups if len({_at(row, g) for row in table.rows}) > 1] or groups[:1]
    along = [_spread(_alike(table.rows, base, (g,), groups), g, POINTS) for g in varied[:LINES]]
    sides = (varied[0], varied[1]) if len(varied) > 1 else None
    made = []
    for metric in list(dict.fromkeys(_cell(title)[1] for title in table.costs))[:_STRIPS]:
        info = EVERY_METRIC[metric]
        heat = None if sides is None else _heat(table, base, sides, groups, metric)
        lines = (_lines(table, g, rows, metric) for g, rows in zip(varied, along, strict=False))
        unit = {"bytes": "B", "FLOP": "FLOP"}.get(info.unit, "")
        made.append(
            Strip(info.title, unit, tuple(lines), sides is None and not (info.stage_wide or info.largest), heat)
        )
    fixed = ", ".join(f"{_name(table, g)} {_at(base, g)}" for g in groups)
    return tuple(made), table.name + (f", around {fixed}" if sides is not None else "")


def _in_step(table: Table) -> list[Group]:
    """Columns that vary, those together of which each value of one has one value of the other."""
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


def _alike(rows: Sequence[Any], base: Any, free: tuple[Group, ...], groups: list[Group]) -> list[Any]:
    """The rows that are as the base in all but some groups."""
    fixed = [i for g in groups if g not in free for i in g]
    return [row for row in rows if all(row[i] == base[i] for i in fixed)]


def _spread(rows: list[Any], group: Group, most: int) -> list[Any]:
    """At most so many rows, evenly, with both ends; numbers in their order."""
    ordered = sorted(rows, key=lambda row: _at(row, group)) if _whole(rows, group) else rows
    last = len(ordered) - 1
    return ordered if last < most else [ordered[i] for i in sorted({i * last // (most - 1) for i in range(most)})]


def _whole(rows: list[Any], group: Group) -> bool:
    return all(type(_at(row, group)) is int for row in rows)


def _lines(table: Table, group: Group, rows: list[Any], metric: str) -> Lines:
    """A metric at the rows along a group."""
    at = {t: i + len(table.varied) for i, t in enumerate(table.costs) if _cell(t)[1] == metric}
    stages = {_cell(title)[0] or WHOLE: [row[i] for row in rows] for title, i in at.items()}
    return Lines(_name(table, group), [_at(row, group) for row in rows], stages)


def _heat(table: Table, base: Any, sides: tuple[Group, Group], groups: list[Group], metric: str) -> Heat | None:
    """A metric of the whole run over a plane; ``None`` where it is the same everywhere."""
    if metric not in table.costs:
        return None
    cost = len(table.varied) + table.costs.index(metric)
    plane = _alike(table.rows, base, sides, groups)
    known = {(_at(row, sides[0]), _at(row, sides[1])): row[cost] for row in plane}
    if len(set(known.values())) < 2:
        return None
    firsts = [{_at(row, side): row for row in reversed(plane)} for side in sides]
    at = [
        [_at(row, side) for row in _spread([*reversed(one.values())], side, HEAT)]
        for one, side in zip(firsts, sides, strict=True)
    ]
    values = [[known.get((x, y)) for y in at[1]] for x in at[0]]
    return Heat((_name(table, sides[0]), _name(table, sides[1])), (at[0], at[1]), values)


def _at(row: Sequence[Any], group: Group) -> Any:
    """Where a row stands in a group: a number, or a text of all its values."""
    found = [row[i] for i in group]
    return found[0] if len(found) == 1 and type(found[0]) is int else "/".join(map(_text, found))


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _name(table: Table, group: Group) -> str:
    return "/".join(table.varied[i] for i in group)
