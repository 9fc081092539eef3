"""Write sweeps to files part by part, so that an interrupted sweep can be resumed.

Finished parts are stored in a folder next to the file. When all are there they are joined into the file, and the
folder is removed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from costproof.ledger.aside import aside, own_parts_folder, remove_files, remove_parts, scratch
from costproof.ledger.environment import environment, require
from costproof.ledger.errors import BadInput
from costproof.ledger.progress import Progress, silent
from costproof.ledger.writing import (
    check_replaceable,
    open_in_place,
    resolve_named,
    write_named,
    write_texts,
    written_in_place,
)
from costproof.parametric.exact_arrays import ExactColumn, Int128Array
from costproof.reports.escape import visible
from costproof.run.sweep_parts import SweepPart, SweepPoints
from costproof.views.files import COUNTED, SWEEP

_PART: Final = re.compile(r"[0-9a-f]{12}-[0-9]{8,}\.(part|json)")
_LARGEST: Final = 10**38
_LONGEST: Final = 255
"""Maximum bytes of a file name."""


@dataclass(slots=True)
class Tally:
    """Numbers of points and rows written, and of refused points by reason."""

    points: int = 0
    rows: int = 0
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    """An example point, the target's error there, and the number of points, by reason of refusal."""

    def take(self, part: SweepPart) -> dict[str, Any]:
        """Add the counts of a part of the sweep, and return them as data."""
        summary: dict[str, Any] = {"points": part.points, "rows": part.rows, "refused": refusals(part)}
        self.add(**summary)
        return summary

    def add(self, points: int, rows: int, refused: Mapping[str, Mapping[str, Any]]) -> None:
        """Add numbers of points, rows and refused points."""
        self.points += points
        self.rows += rows
        for reason, one in refused.items():
            before = self.refused.setdefault(reason, {**one, "count": 0})
            before["count"] += one["count"]


def refusals(part: SweepPart) -> dict[str, dict[str, Any]]:
    """Return an example, its error and the number of refused points of a part of the sweep, by reason."""
    found: dict[str, dict[str, Any]] = {}
    for one in part.refused:
        entry = found.setdefault(
            one.reason, {"example": {k: plain(v) for k, v in one.example.items()}, "says": one.says, "count": 0}
        )
        entry["count"] += one.count
    return found


def plain(value: Any) -> Any:
    """Return a value converted to types that JSON has."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def numbers(column: ExactColumn) -> list[int]:
    """Return a column as a list of Python integers."""
    found: list[int] = (column.python() if isinstance(column, Int128Array) else column).tolist()
    return found


def rows_of(part: SweepPart, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a part of a sweep, each with the varying parameters and then the costs."""
    varied = [part.varied[n].tolist() if part.varied[n] is not None else [None] * part.rows for n in names]
    return zip(*varied, *(numbers(c) for c in part.costs.values()), strict=True)


def write(sweep: SweepPoints, path: Path, progress: Progress = silent) -> Tally:
    """Write a sweep as CSV, JSON or Parquet, by the suffix of the path.

    Pipes and devices need no suffix: CSV rows are written to them as they are computed, other formats at the end,
    without a folder for parts.

    Raises:
        BadInput: another suffix, or a place that cannot be written to.
        Incomplete: Parquet without pyarrow.
    """
    kind = path.suffix
    pipe = written_in_place(path)
    if kind not in _WRITERS:
        if not pipe:
            expected = " or ".join(_WRITERS)
            raise BadInput(
                "the suffix of the file selects the format of the table", where=str(path), expected=expected,
                got=kind or "no suffix", fix="name the file like sweep.csv",
            )  # fmt: skip
        kind = ".csv"
    if kind == ".parquet":
        require("sweep", "writing Parquet", "pyarrow", otherwise="write .csv or .json")
    try:
        if pipe and kind == ".csv":
            with open_in_place(path) as out:
                return stream(sweep, lambda text: out.write(text.encode()))
        if pipe:
            with scratch() as folder:
                tally, whole = _write_parts(sweep, kind, folder, progress)
                write_named(path, whole)
            return tally
        file = resolve_named(path)
        check_replaceable(file)  # not only when all points are evaluated
        folder = _parts_folder(file)
        with own_parts_folder(folder, busy="another sweep is being written to this file"):
            tally, whole = _write_parts(sweep, kind, folder, progress)
            write_texts({file: whole})
            remove_parts(folder, _PART)
    except OSError as error:
        raise BadInput("cannot write the sweep", where=str(path), got=error.strerror or str(error)) from error
    return tally


def _parts_folder(file: Path) -> Path:
    name = file.name + ".parts"
    if len(os.fsencode(name)) > _LONGEST:
        name = sha256(os.fsencode(name)).hexdigest() + ".parts"
    return file.with_name(name)


def _write_parts(sweep: SweepPoints, kind: str, folder: Path, progress: Progress) -> tuple[Tally, Path]:
    """Compute the missing parts of a sweep, and join all parts to one file in their folder."""
    writer = _WRITERS[kind]
    known = sha256(f"{kind} {identity(sweep)}".encode()).hexdigest()
    tally, done = Tally(), _resume(folder, known)
    for part_file in done:
        tally.add(**(_saved_tally(part_file, known) or {}))
    progress("points", tally.points, len(sweep))
    for number, part in enumerate(sweep.parts(skip=len(done)), len(done)):
        done.append(_part(folder, known, number))
        new = aside(folder)
        writer.part(part, sweep, new)
        summary = {"sweep": known, "said": tally.take(part)}
        digest = _digest(new, summary)
        new.replace(done[-1])
        # It comes last: a part without it is made anew.
        new.write_text(json.dumps({**summary, "sha256": digest}))
        new.replace(done[-1].with_suffix(".json"))
        progress("points", tally.points, len(sweep))
    whole = aside(folder)
    writer.whole(done, sweep, tally, whole)
    return tally, whole


def _part(folder: Path, known: str, number: int) -> Path:
    """Return the path of the file for a part; its name contains a hash of the sweep."""
    return folder / f"{known[:12]}-{number:08d}.part"


def _saved_tally(part: Path, known: str) -> dict[str, Any] | None:
    """Return the saved counts of a part, or ``None`` if its file is missing or damaged."""
    try:
        found = json.loads(part.with_suffix(".json").read_bytes())
        digest = found.pop("sha256")
        summary: dict[str, Any] = found["said"]
        return summary if found["sweep"] == known and digest == _digest(part, found) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _digest(part: Path, summary: Mapping[str, Any]) -> str:
    with part.open("rb") as file:
        found = file_digest(file, "sha256")
    found.update(json.dumps(summary).encode())
    return found.hexdigest()


def _resume(folder: Path, known: str) -> list[Path]:
    """Return the intact parts of this sweep, and remove all other files."""
    done: list[Path] = []
    while _saved_tally(part := _part(folder, known, len(done)), known) is not None:
        done.append(part)
    kept = {p.with_suffix(end).name for p in done for end in (".part", ".json")}
    remove_files(folder, _PART, kept)
    return done


def identity(sweep: SweepPoints) -> str:
    """Return, as JSON, everything that decides a sweep's numbers; saved parts of a sweep with equal JSON are reused."""
    values = sha256()
    for axes in sweep.products:
        for axis in axes:
            values.update(repr([name.variable for name in axis.names]).encode())
            for column in axis.columns:
                values.update(repr(column if isinstance(column, range) else list(column)).encode())
        values.update(b"|")
    return json.dumps({**header(sweep), "values": values.hexdigest(), "size": sweep.size}, sort_keys=True)


def header(sweep: SweepPoints) -> dict[str, Any]:
    """Return the header of a sweep's JSON file."""
    target = sweep.points.target
    return {
        "schema": SWEEP.name,
        "schema_version": "{}.{}".format(*SWEEP.version),
        "target": {"name": target.name, "config": {k: plain(v) for k, v in sweep.points.keys().items()}},
        "workload": {"preset": sweep.preset, **{k: plain(v) for k, v in sweep.settings.items()}},
        "environment": environment(),
        "counted": sweep.counted,
        "columns": [*sweep.names, *sweep.titles],
    }


def stream(sweep: SweepPoints, out: Callable[[str], object]) -> Tally:
    """Pass all rows as CSV to a function, part by part."""
    found = Tally()
    out(csv_head(sweep))
    for part in sweep.parts():
        first = _counted_cell(sweep) if found.rows == 0 else ""
        found.take(part)
        out(csv_text(part, sweep.names).replace("\n", f"{first}\n", 1))
    return found


@dataclass(frozen=True, slots=True)
class _Writer:
    part: Callable[[SweepPart, SweepPoints, Path], None]
    whole: Callable[[list[Path], SweepPoints, Tally, Path], None]


def csv_head(sweep: SweepPoints) -> str:
    """Return the header row of a CSV file."""
    return ",".join([*sweep.names, *sweep.titles, COUNTED]) + "\n"


def _counted_cell(sweep: SweepPoints) -> str:
    """Return the conditions of the count, quoted for the last cell of the first CSV row."""
    return '"{}"'.format(visible(sweep.counted).replace('"', '""'))


def csv_text(part: SweepPart, names: Iterable[str]) -> str:
    """Return the rows of a part as CSV."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([*map(_cell, row), ""] for row in rows_of(part, names))
    return out.getvalue()


def _csv_part(part: SweepPart, sweep: SweepPoints, file: Path) -> None:
    file.write_text(csv_text(part, sweep.names), encoding="utf-8", newline="")


def _cell(value: Any) -> Any:
    """Return a value in the form that the command line accepts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "+".join(map(str, value)) if isinstance(value, tuple) else value


def _csv_whole(parts: list[Path], sweep: SweepPoints, tally: Tally, file: Path) -> None:
    with file.open("wb") as out:
        out.write(csv_head(sweep).encode())
        _append(parts, out, _counted_cell(sweep).encode())


def _append(parts: list[Path], out: Any, first: bytes = b"") -> None:
    """Append the files of all parts to ``out``, with a text added to the first line."""
    for part in parts:
        with part.open("rb") as source:
            if first and (line := source.readline()):
                out.write(line[:-1] + first + b"\n")
                first = b""
            shutil.copyfileobj(source, out)


def _json_part(part: SweepPart, sweep: SweepPoints, file: Path) -> None:
    with file.open("w", encoding="utf-8") as out:
        for row in rows_of(part, sweep.names):
            out.write(json.dumps([plain(v) for v in row]) + ",\n")


def _json_whole(parts: list[Path], sweep: SweepPoints, tally: Tally, file: Path) -> None:
    summary = {**header(sweep), "points": tally.points, "rows": tally.rows, "refused": tally.refused}
    with file.open("wb") as out:
        out.write((json.dumps(summary, indent=1, ensure_ascii=False)[:-2] + ',\n "data": [\n').encode())
        _append(parts, out)
        if tally.rows:
            out.seek(-2, os.SEEK_END)
            out.truncate()
        out.write(b"\n]}\n")


def _parquet_part(part: SweepPart, sweep: SweepPoints, file: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns: dict[str, Any] = {}
    for name in sweep.names:
        values = part.varied[name]
        values_ = [None] * part.rows if values is None else [_cell(v) for v in values.tolist()]
        columns[name] = pyarrow.array(values_)
    for name, column in part.costs.items():
        columns[name] = _arrow(column)
    parquet.write_table(pyarrow.table(columns), file)


def _arrow(column: ExactColumn) -> Any:
    """Return a column for Arrow: int64 unchanged, larger numbers as decimal128 of 38 digits."""
    import pyarrow

    if isinstance(column, np.ndarray) and column.dtype == np.int64:
        return pyarrow.array(column)
    if isinstance(column, Int128Array):
        words = np.empty((len(column.low), 2), np.uint64)
        words[:, 0], words[:, 1] = column.low, column.high.view(np.uint64)
        buffers = [None, pyarrow.py_buffer(words.tobytes())]
        return pyarrow.Array.from_buffers(pyarrow.decimal128(38), len(words), buffers)
    found = column.tolist()
    if any(abs(n) >= _LARGEST for n in found):
        raise BadInput(
            "a number has more digits than Parquet's decimal128 has", expected="38", fix="write .csv or .json"
        )

    return pyarrow.array([Decimal(n) for n in found], pyarrow.decimal128(38))


def _parquet_whole(parts: list[Path], sweep: SweepPoints, tally: Tally, file: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    schemas = [parquet.read_schema(part) for part in parts]
    fields = []
    for name in schemas[0].names:
        types = {schema.field(name).type for schema in schemas} - {pyarrow.null()}
        wide = [t for t in types if pyarrow.types.is_decimal(t)]
        fields.append((name, wide[0] if wide else next(iter(types), pyarrow.null())))
    whole = pyarrow.schema(fields, metadata={b"costproof": json.dumps(header(sweep)).encode()})
    with parquet.ParquetWriter(file, whole) as out:
        for part in parts:
            out.write_table(parquet.read_table(part).cast(whole))


_WRITERS: Final = {
    ".csv": _Writer(_csv_part, _csv_whole),
    ".json": _Writer(_json_part, _json_whole),
    ".parquet": _Writer(_parquet_part, _parquet_whole),
}
"""Functions that write a part and that join all parts, by file suffix."""
