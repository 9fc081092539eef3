"""Tables of numbers: CSV or JSON, row by row, each cell a text with its place."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costproof.ledger.document import read_source
from costproof.ledger.errors import BadInput, CostproofError

_MOST_ROWS: Final = 1_000
_LONGEST: Final = 2_000
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: texts by column, empty cells left out."""

    cells: Mapping[str, str]
    where: str
    """``numbers.csv, line 3``, ``numbers.json, row 2``."""


def read_table(
    path: Path, problems: list[CostproofError], required: Sequence[str], more: Sequence[str] | None = None
) -> list[TableRow]:
    """The rows of a file; lines that cannot be used are told in ``problems``.

    Args:
        required: columns that it must have.
        more: columns that it may have beside these; any if ``None``.

    Raises:
        BadInput: it cannot be read, its columns are wrong, or it has no row or too many.
    """
    source = read_source(path, "a table")
    columns, rows = _json(source, path) if path.suffix.lower() == ".json" else _csv(source, path, problems)
    missing = [c for c in required if c not in columns]
    unknown = [c for c in columns if more is not None and c not in (*required, *more)]
    if missing or unknown or len(set(columns)) < len(columns):
        what = "lacks a column" if missing else "has a column that means nothing" if unknown else "has a column twice"
        optional = f", and if you like {', '.join(more)}" if more else ""
        raise BadInput(f"a table {what}", where=str(path), expected=", ".join(required) + optional,
                       got=_header(columns, shown=more is not None))  # fmt: skip
    if not rows and not problems:
        raise BadInput("a table has no row", where=str(path), expected="a line below the header")
    if len(rows) > _MOST_ROWS or any(len(v) > _LONGEST for r in rows for v in r.cells.values()):
        raise BadInput("a table is too large", where=str(path),
                       expected=f"at most {_MOST_ROWS:,} rows, and {_LONGEST:,} characters a cell")  # fmt: skip
    return rows


def _header(columns: Sequence[str], *, shown: bool) -> str:
    """What a table begins with. A claims file may name any file beside it: of those no message shows the content."""
    return ", ".join(columns)[:_SHOWN] or "no header" if shown else f"{len(columns)} other columns"


def _csv(source: str, path: Path, problems: list[CostproofError]) -> tuple[list[str], list[TableRow]]:
    reader = csv.reader(io.StringIO(source), strict=True)
    try:
        lines = [(reader.line_num, [c.strip() for c in cells]) for cells in reader]
    except csv.Error as error:
        raise BadInput("not a CSV table", where=f"{path}, line {reader.line_num}", got=str(error)) from None
    full = [(f"{path}, line {number}", cells) for number, cells in lines if any(cells)]
    columns = full[0][1] if full else []
    rows = []
    for where, cells in full[1:]:
        if len(cells) == len(columns):
            rows.append(TableRow({c: v for c, v in zip(columns, cells, strict=True) if v}, where))
        else:
            problems.append(
                BadInput("a line has another number of cells than the header", where=where, expected=len(columns),
                         got=len(cells), fix="put a value with a comma in quotes")
            )  # fmt: skip
    return columns, rows


def _json(source: str, path: Path) -> tuple[list[str], list[TableRow]]:
    """Numbers stay as they are written: no digit passes through a float."""
    try:
        found = json.loads(source, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(r, dict) for r in found):
        raise BadInput("not a JSON table", where=str(path), expected="a list of objects")
    columns = list(dict.fromkeys(str(key) for row in found for key in row))
    texts = ({str(k): "" if v is None else str(v).strip() for k, v in row.items()} for row in found)
    rows = enumerate(texts, start=1)
    return columns, [TableRow({k: v for k, v in row.items() if v}, f"{path}, row {number}") for number, row in rows]
