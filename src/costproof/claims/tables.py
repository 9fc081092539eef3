"""Claims in tables: CSV or JSON rows, with a mapping from columns to what they claim."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from costproof.claims.document import Value, read_source
from costproof.ledger.errors import BadInput

_KEYS: Final = ("file", "columns", "units", "stages", "conventions")
_MOST_ROWS: Final = 1_000
_LONGEST: Final = 2_000


def rows_of(table: Value, folder: Path | None, where: str) -> list[Value]:
    """The rows of a table in the shape of claims.

    ``columns`` maps a claim's key (``stage``, ``flops``) to a column's name, ``units`` a metric to the
    unit of its column (``G``), ``stages`` the table's words for stages to ours; rows whose word
    is missing there are left out.

    Raises:
        BadInput: the table or its mapping cannot be used.
    """
    if not isinstance(table, dict):
        raise BadInput("a table is a map", where=where, expected="keys " + ", ".join(_KEYS))
    if unknown := [k for k in table if k not in _KEYS]:
        raise BadInput("no such key", where=f"{where}.{unknown[0][:60]}", expected="one of " + ", ".join(_KEYS))
    columns, units, stages = (_texts(table.get(k, {}), f"{where}.{k}") for k in ("columns", "units", "stages"))
    if "stage" not in columns:
        raise BadInput("no column says what a row is about", where=f"{where}.columns", expected="stage: COLUMN")
    name = table.get("file", "")
    if not isinstance(name, str) or not name or folder is None:
        raise BadInput("a table names its file", where=f"{where}.file", expected="a path beside the claims file")
    found: list[Value] = []
    for number, row in enumerate(_read(folder / name, where)):
        claim: dict[str, Value] = {"conventions": table["conventions"]} if "conventions" in table else {}
        for key, column in columns.items():
            if column not in row:
                raise BadInput("a table lacks a column", where=f"{where}, row {number + 1}", expected=column,
                               got=", ".join(row)[:200])  # fmt: skip
            if row[column].strip():
                claim[key] = f"{row[column].strip()} {units[key]}" if key in units else row[column].strip()
        word = claim.get("stage")
        if stages:
            if not isinstance(word, str) or word not in stages:
                continue
            claim["stage"] = stages[word]
        found.append(claim)
    return found


def _read(path: Path, where: str) -> list[dict[str, str]]:
    source = read_source(path, "a table")
    rows: list[dict[str, str]]
    if path.suffix.lower() == ".json":
        rows = _json(source, path)
    else:
        try:
            reader = csv.DictReader(io.StringIO(source), strict=True)
            rows = [{str(k): str(v or "") for k, v in row.items() if k is not None} for row in reader]
        except csv.Error as error:
            raise BadInput("a table is no CSV", where=str(path), got=str(error)) from None
    if len(rows) > _MOST_ROWS:
        raise BadInput("a table has too many rows", where=str(path), expected=f"at most {_MOST_ROWS}")
    if any(len(v) > _LONGEST for row in rows for v in row.values()):
        raise BadInput("a cell is too long", where=str(path), expected=f"at most {_LONGEST} characters")
    return rows


def _json(source: str, path: Path) -> list[dict[str, str]]:
    """Rows with numbers as they are written: no digit passes through a float."""
    try:
        rows = json.loads(source, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        raise BadInput("a table is no JSON", where=str(path)) from None
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise BadInput("a table is no list of objects", where=str(path))
    return [{str(k): "" if v is None else str(v) for k, v in row.items()} for row in rows]


def _texts(given: Value, where: str) -> Mapping[str, str]:
    if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
        raise BadInput("this is a map of texts", where=where)
    return {k: v for k, v in given.items() if isinstance(v, str)}
