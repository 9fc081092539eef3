"""A user's own FLOP numbers as claims: ``NAME@STAGE[:INVOCATION]=VALUE`` or a CSV, all problems at once."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costproof.claims.amounts import amount
from costproof.claims.document import read_source
from costproof.claims.types import TOTAL, Claim, ClaimsFile
from costproof.ledger.errors import BadInput, CostproofError, Problems

REQUIRED: Final = ("name", "stage", "value")
COLUMNS: Final = (*REQUIRED, "unit", "invocation")
UNITS: Final = ("flop", "mac")
_GRAMMAR: Final = "NAME=VALUE, NAME@STAGE=VALUE, NAME@STAGE:INVOCATION=VALUE or FILE.csv"
_PAIR: Final = re.compile(r"(?P<name>[^=@]+)(?:@(?P<stage>[^=:@]+)(?::(?P<invocation>[^=@]+))?)?=(?P<value>.+)")
_SUFFIX: Final = re.compile(r"(?P<value>.*?)\s*(?P<unit>flop|mac)s?", re.IGNORECASE)
_MOST_ROWS: Final = 1_000
_MOST_PROBLEMS: Final = 20
_LONGEST: Final = 80


@dataclass(frozen=True, slots=True)
class _Row:
    """One number as it was given: texts, and where each stands."""

    cells: Mapping[str, str]
    where: str
    """``--add mine=1G``, or ``numbers.csv, line 3``."""
    table: bool = False

    def at(self, column: str) -> str:
        """The place of one cell."""
        return f"{self.where}, column {column}" if self.table else self.where


def own_claims(
    given: Iterable[str], places: Mapping[str, Sequence[str]], default: str = TOTAL
) -> tuple[ClaimsFile, ...]:
    """The numbers, one claims file a name: those of one name belong together.

    Args:
        given: pairs and paths of CSV files, as :data:`_GRAMMAR` has them.
        places: the invocations of each stage.
        default: the stage of a number that names none.

    Raises:
        Problems: everything that is wrong with them.
    """
    problems: list[CostproofError] = []
    rows: list[_Row] = []
    for text in given:
        try:
            rows += [_pair(text)] if "=" in text else _csv(text, problems)
        except CostproofError as error:
            problems.append(error)
    found: dict[str, list[Claim]] = {}
    seen: dict[tuple[str, str, str], str] = {}
    for row in rows:
        try:
            claim = _claim(row, places, default)
            key = (claim.id, claim.stage, claim.invocation)
            if key in seen:
                raise BadInput("this number is given twice", where=row.where, got=f"the same place as {seen[key]}",
                               fix="give one of them another name")  # fmt: skip
            seen[key] = row.where
            found.setdefault(claim.id, []).append(claim)
        except CostproofError as error:
            problems.append(error)
    if problems:
        raise Problems("your own numbers cannot be used", problems[:_MOST_PROBLEMS])
    return tuple(ClaimsFile(name, "", "", {}, tuple(claims)) for name, claims in found.items())


def _pair(text: str) -> _Row:
    match = _PAIR.fullmatch(text.strip())
    if match is None:
        raise BadInput("a number of your own needs a name and a value", where="--add", expected=_GRAMMAR,
                       got=text[:_LONGEST])  # fmt: skip
    cells = {k: v.strip() for k, v in match.groupdict().items() if v}
    ending = _SUFFIX.fullmatch(cells["value"])
    if ending is not None:
        cells |= {"value": ending["value"], "unit": ending["unit"].lower()}
    return _Row(cells, f"--add {text[:_LONGEST]}")


def _csv(name: str, problems: list[CostproofError]) -> list[_Row]:
    path = Path(name)
    if path.suffix.lower() != ".csv":
        raise BadInput("a number of your own needs a name and a value", where="--add", expected=_GRAMMAR,
                       got=name[:_LONGEST])  # fmt: skip
    lines = _lines(read_source(path, "a table of numbers"), name)
    number, head = next(lines, (1, []))
    columns = [c.strip() for c in head]
    where = f"{name}, line {number}"
    missing = [c for c in REQUIRED if c not in columns]
    unknown = [c for c in columns if c not in COLUMNS]
    twice = sorted({c for c in columns if columns.count(c) > 1})
    if missing or unknown or twice:
        what = "lacks a column" if missing else "has a column that means nothing" if unknown else "has a column twice"
        raise BadInput(f"a table of numbers {what}", where=where, expected=", ".join(COLUMNS[:3]) + ", and if you like "
                       + ", ".join(COLUMNS[3:]), got=", ".join(columns)[:_LONGEST] or "an empty line")  # fmt: skip
    rows: list[_Row] = []
    for number, cells in lines:
        where = f"{name}, line {number}"
        if len(cells) != len(columns):
            problems.append(
                BadInput("a line has another number of cells than the header", where=where, expected=len(columns),
                         got=len(cells), fix="put a value with a comma in quotes")
            )  # fmt: skip
            continue
        if len(rows) == _MOST_ROWS:
            raise BadInput("a table of numbers is too long", where=where, expected=f"at most {_MOST_ROWS:,} rows")
        rows.append(_Row({c: v.strip() for c, v in zip(columns, cells, strict=True) if v.strip()}, where, True))
    if not rows and not problems:
        raise BadInput("a table of numbers has no row", where=name, expected="a line below the header")
    return rows


def _lines(source: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not empty, each with its number in the file."""
    reader = csv.reader(io.StringIO(source), strict=True)
    try:
        for cells in reader:
            if any(c.strip() for c in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise BadInput(
            "a table of numbers is no CSV", where=f"{name}, line {reader.line_num}", got=str(error)
        ) from None


def _claim(row: _Row, places: Mapping[str, Sequence[str]], default: str) -> Claim:
    cells = row.cells
    for column in ("name", "value"):
        if column not in cells:
            raise BadInput(f"a number has no {column}", where=row.at(column), expected="a text", got="an empty cell")
    stage, invocation, unit = cells.get("stage", default), cells.get("invocation", ""), cells.get("unit", "")
    _check("no such stage", stage, (*places, TOTAL), row.at("stage"))
    if invocation:
        _check("the workload has no such invocation", invocation, places.get(stage, ()), row.at("invocation"))
    if unit:
        _check("no such unit", unit, UNITS, row.at("unit"))
    try:
        value = amount(cells["value"], where=row.where)
    except BadInput as error:
        error.what, error.where = "not a count of FLOPs or MACs", row.at("value")
        error.fix = "write the number as it was printed, with its prefix: 571.92G"
        raise
    conventions = {"unit": unit} if unit else {}
    return Claim(cells["name"][:_LONGEST], row.where, stage, "flops", value, invocation, "", conventions)


def _check(what: str, got: str, known: Sequence[str], where: str) -> None:
    if got not in known:
        raise BadInput(what, where=where, expected=" or ".join(known) or "none", got=got[:_LONGEST])
