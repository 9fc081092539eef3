"""Parse the values of a sweep into grids of points: ranges, lists, products, and names that vary together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import inf, isfinite, prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from costproof.configs.config import KEY, KEYS_IN_FILE
from costproof.ledger.errors import BadInput, CostproofError, Problems, no_such
from costproof.ledger.files import csv_rows
from costproof.models.target import WithKeys
from costproof.parametric.evaluator import Evaluator

PRESET: Final = "preset"
MOST_POINTS: Final = 1_000_000_000
"""Maximum number of points of a sweep; a range of this length is never expanded into a list."""
MOST_LISTED: Final = 2_000_000
"""Maximum number of values of one ``--over`` that are expanded into a list instead of kept as a range."""
_RANGE: Final = re.compile(r"(\d{1,12}):(\d{1,12})(?::(\d{1,12}))?")

Over = Mapping[str, Any]
"""Values by name, as command-line text or as an iterable; names joined by ``/`` have tuples."""


@dataclass(frozen=True, slots=True)
class GridParameter:
    """A varied parameter of a sweep: a setting of the workload, a configuration key, or the preset."""

    given: str
    """Name that the user gave, which is the title of the column."""
    variable: str
    """Internal name: ``setting:batch``, ``key:text.hidden``, ``preset``."""
    number: bool
    now: Any = None
    """Current value of a configuration key."""


@dataclass(frozen=True, slots=True)
class GridAxis:
    """Parameters of a sweep that vary together, with their values."""

    names: tuple[GridParameter, ...]
    columns: tuple[Sequence[Any], ...]
    """Values of each parameter; all columns have the same length."""

    def __len__(self) -> int:
        return len(self.columns[0])


@dataclass(frozen=True, slots=True)
class GridBlock:
    """Points of a grid that differ only in numeric parameters."""

    fixed: Mapping[GridParameter, Any]
    """Values of the non-numeric parameters."""
    axes: tuple[GridAxis, ...]
    """Axes of numeric parameters; the last one varies fastest."""

    def __len__(self) -> int:
        return prod(map(len, self.axes))

    def boxes(self, size: int) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
        """Split the block into boxes of at most ``size`` points; yield (values by variable, shape) of each."""
        lengths = [len(axis) for axis in self.axes]
        steps = [1] * len(lengths)
        room = size
        for i in reversed(range(len(lengths))):
            steps[i] = max(min(lengths[i], room), 1)
            room //= steps[i]
        starts = [range(0, n, step) for n, step in zip(lengths, steps, strict=True)]
        values: dict[str, Any] = {}
        before: tuple[int | None, ...] = (None,) * len(lengths)
        for corner in product(*starts):
            shape = tuple(min(s, n - at) for at, s, n in zip(corner, steps, lengths, strict=True)) or (1,)
            # An unchanged axis keeps its array objects, by whose identity callers find memoized results.
            values = dict(values)
            for i, (axis, at) in enumerate(zip(self.axes, corner, strict=True)):
                for name, column in zip(axis.names, axis.columns, strict=True) if at != before[i] else ():
                    along = [shape[i] if j == i else 1 for j in range(len(shape))]
                    values[name.variable] = _array(column[at : at + shape[i]]).reshape(along)
            before = corner
            yield values, shape


def _array(values: Sequence[int]) -> Any:
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step, dtype=np.int64)
    return np.asarray(values, dtype=np.int64)


def split_blocks(axes: Sequence[GridAxis]) -> Iterator[GridBlock]:
    """Split a product of axes into blocks within which only numeric parameters vary.

    Parameters that are not numbers vary slowest, whatever the order of the axes.
    """
    numbers = tuple(a for a in axes if all(n.number for n in a.names))
    others = [list(_runs(a)) for a in axes if not all(n.number for n in a.names)]
    for runs in product(*others):
        fixed = {name: value for chosen, _ in runs for name, value in chosen.items()}
        yield GridBlock(fixed, (*(axis for _, axis in runs if axis is not None), *numbers))


def _runs(axis: GridAxis) -> Iterator[tuple[dict[GridParameter, Any], GridAxis | None]]:
    """Split an axis into runs of points with equal non-numeric values; yield these and the numeric axis.

    The axis is ``None`` if no column of the axis holds numbers.
    """
    texts = [i for i, name in enumerate(axis.names) if not name.number]
    numbers = [i for i, name in enumerate(axis.names) if name.number]

    def of(row: int) -> tuple[Any, ...]:
        return tuple(axis.columns[i][row] for i in texts)

    for values, rows in groupby(range(len(axis)), key=of):
        where = list(rows)
        part = slice(where[0], where[-1] + 1)
        own = GridAxis(tuple(axis.names[i] for i in numbers), tuple(axis.columns[i][part] for i in numbers))
        yield dict(zip((axis.names[i] for i in texts), values, strict=True)), own if numbers else None


def grid_axes(points: Evaluator[WithKeys], over: Over, option: str = "--over") -> tuple[GridAxis, ...]:
    """Parse ``NAME=VALUES`` words into the axes of one grid (Cartesian product).

    Args:
        points: the evaluator of the target.
        over: name -> values.
        option: the option that the values come from, for errors.

    Raises:
        Problems: all names without a meaning, and all values that a name cannot have.
    """
    problems: list[CostproofError] = []
    found: list[GridAxis] = []
    for names, values in over.items():
        try:
            found.append(_axis(points, names, values, f"{option} {names}"))
        except BadInput as error:
            problems += error.problems if isinstance(error, Problems) else [error]
    seen = [name for axis in found for name in axis.names]
    twice = sorted({n.given for n in seen if [m.variable for m in seen].count(n.variable) > 1})
    if twice:
        problems.append(BadInput("a name is varied twice in one product", where=option, got=", ".join(twice)))
    if problems:
        raise problems[0] if len(problems) == 1 else Problems("invalid sweep", problems)
    return tuple(found)


def _axis(points: Evaluator[WithKeys], names: str, values: Any, where: str) -> GridAxis:
    chosen = tuple(resolve_parameter(points, name, where) for name in names.split("/"))
    if isinstance(values, str):
        columns = [_in_step(_pairs(chosen, item, where), where) for item in values.split(",")]
        if len(columns) > 1:
            _check_listed(sum(len(column[0]) for column in columns), where)
        chosen_columns = tuple(_concatenate([c[i] for c in columns]) for i in range(len(chosen)))
    elif len(chosen) == 1:
        chosen_columns = (_check_values(chosen[0], values, where),)
    else:
        rows = [tuple(row) for row in values]
        if any(len(row) != len(chosen) for row in rows):
            wrong = next(row for row in rows if len(row) != len(chosen))
            raise BadInput(
                "names that vary together need tuples of values", where=where,
                expected=f"one tuple of {len(chosen)} values for each point", got=repr(wrong)[:60],
                fix="such as {'batch/seq_len': [(1, 512), (2, 1024)]}",
            )  # fmt: skip
        chosen_columns = tuple(_check_values(name, [row[i] for row in rows], where) for i, name in enumerate(chosen))
    if not len(chosen_columns[0]):
        raise BadInput("nothing to vary", where=where, expected="at least one value", got="none")
    return GridAxis(chosen, chosen_columns)


def _pairs(names: tuple[GridParameter, ...], item: str, where: str) -> list[tuple[GridParameter, str]]:
    parts = item.split("/")
    if len(parts) != len(names):
        expected = "/".join(n.given for n in names)
        raise BadInput(
            "names that vary together need values joined by /", where=where, expected=expected, got=item[:60]
        )
    return list(zip(names, parts, strict=True))


def _in_step(words: list[tuple[GridParameter, str]], where: str) -> list[Sequence[Any]]:
    """Return equally many values for each of several names that vary together; a single value is repeated."""
    parts = [_values(name, word, where) for name, word in words]
    longest = max(map(len, parts))
    if any(len(part) not in (1, longest) for part in parts):
        got = " and ".join(str(len(part)) for part in parts)
        expected = "ranges of equal length, or a single value"
        raise BadInput("names that vary together need equally many values", where=where, expected=expected, got=got)
    if any(len(part) != longest for part in parts):
        _check_listed(longest, where)
    return [part if len(part) == longest else list(part) * longest for part in parts]


def _check_listed(count: int, where: str) -> None:
    """Raise an error if more values are given than may be expanded into a list."""
    if count > MOST_LISTED:
        raise BadInput(
            "too many values in a list",
            where=where,
            expected=f"at most {MOST_LISTED:,}, or a single range",
            got=f"{count:,}",
        )


def _concatenate(parts: list[Sequence[Any]]) -> Sequence[Any]:
    return parts[0] if len(parts) == 1 else [value for part in parts for value in part]


def resolve_parameter(points: Evaluator[WithKeys], given: str, where: str) -> GridParameter:
    """Return the sweep parameter with a name: a setting of the target, or a configuration key.

    Raises:
        BadInput: there is no such name, or several keys have it.
    """
    settings = {s.name: s for s in points.target.settings()}
    name = given.strip()
    if name == PRESET:
        return GridParameter(name, PRESET, number=False)
    if name.replace("-", "_") in settings:
        setting = settings[name.replace("-", "_")]
        return GridParameter(name, f"setting:{setting.name}", number=setting.kind == "integer")
    keys = points.keys()
    plain = name.removeprefix(KEY)
    if plain not in keys and not any(k.endswith(f".{plain}") for k in keys):
        what, fix = ("setting or key", None) if keys else ("setting", KEYS_IN_FILE)
        raise no_such(what, name, [*settings, *keys, PRESET], where=where, fix=fix)
    key = points.key(name, where)
    return GridParameter(name, f"key:{key}", number=type(keys[key]) is int or keys[key] is None, now=keys[key])


def _values(name: GridParameter, word: str, where: str) -> Sequence[Any]:
    """Parse one comma-separated item of VALUES into a list or range of values."""
    text = word.strip()
    span = _RANGE.fullmatch(text) if name.number else None
    if span is not None:
        start, stop, step = int(span[1]), int(span[2]), int(span[3] or 1)
        if step < 1 or stop < start:
            expected = "START:STOP:STEP with START <= STOP (included) and STEP >= 1"
            raise BadInput("not a valid range", where=where, expected=expected, got=text)
        return range(start, stop + 1, step)
    return [parse_value(name, text, where)]


def parse_value(name: GridParameter, text: str, where: str) -> Any:
    """Return the value of a parameter from its text.

    Raises:
        BadInput: the parameter cannot have it.
    """
    if name.number:
        if not re.fullmatch(r"\d{1,12}", text):
            raise BadInput(
                "this must be an integer or a range", where=where, expected="N or START:STOP:STEP", got=text[:60]
            )
        return int(text)
    if isinstance(name.now, bool):
        if text not in ("true", "false"):
            raise BadInput("this must be true or false", where=where, expected="true or false", got=text[:60])
        return text == "true"
    if isinstance(name.now, tuple):
        if not re.fullmatch(r"\d{1,12}(\+\d{1,12})*", text):
            raise BadInput(
                "this must be a list of integers", where=where, expected="integers joined by +", got=text[:60]
            )
        return tuple(map(int, text.split("+")))
    if isinstance(name.now, float):
        try:
            number = float(text)
        except ValueError:
            number = inf
        if not isfinite(number):
            raise BadInput("this must be a number", where=where, expected="such as 0.5 or 1e6", got=text[:60])
        return number
    return text


def _check_values(name: GridParameter, values: Iterable[Any], where: str) -> Sequence[Any]:
    """Return the values of a Python iterable, after checking their type."""
    if isinstance(values, range) and name.number and values.step > 0 and values.start >= 0:
        return values
    found = [int(v) if isinstance(v, np.integer) else v for v in values]
    if name.number and not all(type(v) is int and 0 <= v < 2**40 for v in found):
        wrong = next(v for v in found if type(v) is not int or not 0 <= v < 2**40)
        raise BadInput("this must be an integer", where=where, expected="from 0 to below 2**40", got=repr(wrong)[:60])
    return found


def axes_from_csv(points: Evaluator[WithKeys], path: Path) -> tuple[GridAxis, ...]:
    """Return the points of a CSV file as one axis, with a name per column and a point per row.

    Raises:
        BadInput: the file cannot be read, or a name or a value is wrong.
    """
    rows = csv_rows(path, what="table of points")
    _, header = next(rows, (0, []))
    if not header:
        fix = "the first row has names, every other one a point"
        raise BadInput("a table of points is empty", where=str(path), fix=fix)
    names = tuple(resolve_parameter(points, name, f"{path}, row 1") for name in header)
    if len({name.variable for name in names}) < len(names):
        raise BadInput("a name is varied twice in one product", where=f"{path}, row 1", got=", ".join(header)[:120])
    columns: list[list[Any]] = [[] for _ in names]
    for number, (_, row) in enumerate(rows, 2):
        if len(row) != len(names):
            where = f"{path}, row {number}"
            raise BadInput("a row differs in length from the header", where=where, expected=len(names), got=len(row))
        for name, column, value in zip(names, columns, row, strict=True):
            column.append(parse_value(name, value.strip(), f"{path}, row {number}, {name.given}"))
    if not columns[0]:
        raise BadInput("the table has no points", where=str(path), expected="a row of values below the header")
    return (GridAxis(names, tuple(columns)),)
