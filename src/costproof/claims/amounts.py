"""Parse printed numbers as intervals of integers, and read tables of such numbers."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Final

from costproof.claims.types import Amount
from costproof.ledger.document import read_source
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.metrics import BYTES, Metric

_NUMBER: Final = re.compile(r"([0-9][0-9_,]{0,40})(?:\.([0-9]{1,20}))?(?:[eE]([+-]?[0-9]{1,2}))?\s*([A-Za-z]*)")
_POWER: Final = re.compile(r"(?<=[0-9])\s*[x×·]\s*10\s*(?:\^|\*\*)\s*(?=[+-]?[0-9])")
_PRODUCT: Final = re.compile(r"(?<=[0-9])(\.[0-9]+)\s*\*\s*10\s*(?:\^|\*\*)\s*(?=[+-]?[0-9])")
"""Matches a printed power of ten with a decimal mantissa, as ``8.03*10^9``; ``8*10**9`` is an exact formula."""
_APART: Final = re.compile(r"(?<=[0-9])\s+(?=[eE][+-]?[0-9])")
_UNITS: Final = {
    "": 0, "k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "b": 9, "T": 12, "P": 15, "million": 6, "billion": 9, "trillion": 12,
}  # fmt: skip
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_SUFFIX: Final = re.compile(r"([kKMGTP]?i?)(?:(FLOPs?)|(MACs?)|(B|bytes?))", re.IGNORECASE)
_SPELLINGS: Final = "no unit, or k, M, G, T, P; with FLOPs for FLOPs; with B, or KiB, MiB, GiB, TiB, PiB, for bytes"
_MOST: Final = 36


_TIMES: Final = re.compile(r"([1-9][0-9]{0,8})\s*[x×·*]\s*([0-9][0-9_,]*(?:\.[0-9]|\s*[A-Za-z]).*)")
"""Matches a rounded number that is printed as a product: ``8 x 7.24e9``."""


def is_number(text: str) -> bool:
    """Return whether a text is a printed number rather than a formula."""
    times = _TIMES.fullmatch(_plain(text))
    return _NUMBER.fullmatch(times[2] if times else _plain(text)) is not None


def _plain(text: str) -> str:
    """Return a power of ten in program notation: ``8.03e9`` for ``8.03 × 10^9``."""
    return _APART.sub("", _PRODUCT.sub(r"\1e", _POWER.sub("e", text.strip())))


def amount(text: str, *, where: str, metric: Metric | None = None) -> Amount:
    """Return the interval of integers that a printed number may represent.

    A number without decimals, exponent and unit is exact. Otherwise the last printed digit counts as rounded: the
    interval extends by half a unit of that digit in both directions, and includes both ends because programs round
    halves up or down. A printed zero is exactly zero. In a product with an integer, such as ``8 x 7.24e9``, the number
    was rounded before it was multiplied.

    Args:
        text: the number as printed, such as ``571.92 G``.
        where: its place in the input, for error messages.
        metric: the metric that it counts; decides which units are allowed: ``GFLOPs`` for FLOPs, ``KiB`` for bytes.

    Raises:
        BadInput: the text is not a number, no integer rounds to it, or the metric does not have its unit.
    """
    if times := _TIMES.fullmatch(_plain(text)):
        one = amount(times[2], where=where, metric=metric)
        return Amount(text.strip(), int(times[1]) * one.low, int(times[1]) * one.high)
    match = _NUMBER.fullmatch(_plain(text))
    if match is None:
        raise BadInput("not a number", where=where, expected="digits such as 5719225, 571.92 G, 1.5e9", got=text[:60])
    whole, decimals, exponent, word = match.groups()
    unit = _prefix(word, metric, where)
    shift = _UNITS.get(unit, 0) + int(exponent or 0)
    if abs(shift) > _MOST:
        raise BadInput("a claim is out of range", where=where, expected=f"at most 10 to the {_MOST}", got=text[:60])
    digits = whole.replace("_", "").replace(",", "") + (decimals or "")
    last = Fraction(10) ** (shift - len(decimals or "")) * 2 ** _BINARY.get(unit, 0)
    value = int(digits) * last
    if not decimals and not exponent and not unit:
        return Amount(text.strip(), int(value), int(value))
    low, high = (ceil(value - last / 2), floor(value + last / 2)) if last > 1 else (ceil(value), floor(value))
    if low > high:
        raise BadInput(
            "not an integer", where=where, expected="a count", got=text[:60],
            fix="write the number as it was printed, with its prefix: 571.92G",
        )  # fmt: skip
    # A printed zero means that nothing is counted, even if its unit would round small numbers to zero.
    return Amount(text.strip(), max(low, 0), high if value else 0)


def _prefix(word: str, metric: Metric | None, where: str) -> str:
    """Return the prefix of a unit, such as ``G`` for ``GFLOPs`` and ``Ki`` for ``KiB``."""
    split = _SUFFIX.fullmatch(word)
    if split is None or (word in _UNITS and metric not in BYTES):
        if word in _UNITS or word in _BINARY:
            return word
        raise BadInput("not a unit", where=where, expected=_SPELLINGS, got=word[:40])
    prefix, flops, macs, _ = split.groups()
    if macs:
        fix = f"write {prefix or 'the number alone'} and conventions: {{unit: mac}}"
        raise BadInput("multiply-accumulates are a convention, not a unit", where=where, got=word, fix=fix)
    allowed = metric is None or (metric in BYTES) != bool(flops)
    if not allowed or prefix not in {*_UNITS, *_BINARY}:
        raise BadInput(f"not a unit of {metric or 'a number'}", where=where, expected=_SPELLINGS, got=word)
    return prefix


_MOST_ROWS: Final = 1_000
_LONGEST: Final = 2_000
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class ClaimTableRow:
    """A row of a table of published numbers."""

    cells: Mapping[str, str]
    """Text of each cell, by column; empty cells are omitted."""
    where: str
    """Location of the row, for messages: ``numbers.csv, line 3`` or ``numbers.json, row 2``."""


def read_table(
    path: Path, problems: list[CostproofError], required: Sequence[str], more: Sequence[str] | None = None
) -> list[ClaimTableRow]:
    """Return the rows of a CSV or JSON table of published numbers.

    Args:
        path: the file; it is read as JSON if its suffix is ``.json``, and as CSV otherwise.
        problems: list to which an error is appended for each unusable line.
        required: columns that the table must have.
        more: optional columns; any column is allowed if ``None``.

    Raises:
        BadInput: the file cannot be read, its columns are wrong, or it has no rows or too many.
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
    """Return the column names of a table for a message, or with ``shown`` false only the number of columns."""
    return ", ".join(columns)[:_SHOWN] or "no header" if shown else f"{len(columns)} other columns"


def _csv(source: str, path: Path, problems: list[CostproofError]) -> tuple[list[str], list[ClaimTableRow]]:
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
            rows.append(ClaimTableRow({c: v for c, v in zip(columns, cells, strict=True) if v}, where))
        else:
            problems.append(
                BadInput("a line has another number of cells than the header", where=where, expected=len(columns),
                         got=len(cells), fix="put a value with a comma in quotes")
            )  # fmt: skip
    return columns, rows


def _json(source: str, path: Path) -> tuple[list[str], list[ClaimTableRow]]:
    """Return the columns and rows of a JSON table; numbers stay text, so that none is rounded to a float."""
    try:
        found = json.loads(source, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(r, dict) for r in found):
        raise BadInput("not a JSON table", where=str(path), expected="a list of objects")
    columns = list(dict.fromkeys(str(key) for row in found for key in row))
    texts = ({str(k): "" if v is None else str(v).strip() for k, v in row.items()} for row in found)
    rows = enumerate(texts, start=1)
    return columns, [
        ClaimTableRow({k: v for k, v in row.items() if v}, f"{path}, row {number}") for number, row in rows
    ]
