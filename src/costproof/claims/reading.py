"""Read claims from YAML files, tables, and users' own numbers, and report all errors at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from costproof.algebra.conditions import Condition
from costproof.algebra.symbols import parse
from costproof.claims.amounts import ClaimTableRow, amount, is_number, read_table
from costproof.claims.catalogue import STATED
from costproof.claims.types import TOTAL, Amount, ClaimsFile, Formula, PublishedClaim
from costproof.ledger.document import YamlValue, read_document, read_source
from costproof.ledger.errors import NOT_GIVEN, BadInput, CostproofError, Problems, no_such
from costproof.ledger.metrics import PEAK_METRICS, SUMMED, Metric
from costproof.ledger.schema import MAP, SCALAR, form_schema
from costproof.ledger.time_limits import time_limit

VERSION: Final = "1"
TOP: Final = (
    "costproof_claims",
    "title",
    "source",
    "target",
    "workload",
    "conventions",
    "at",
    "holds",
    "claims",
    "tables",
)
PLACE: Final = ("id", "stage", "invocation", "module", "conventions", "at")
TABLE: Final = ("file", "columns", "units", "stages", "conventions")
_METRICS: Final = (*SUMMED, *PEAK_METRICS)
SECONDS: Final = 60
"""Limit of processor time to read a claims file and its tables."""
_MOST_CLAIMS: Final = 2_000
MOST_PROBLEMS: Final = 20
NO_CALL: Final = "(none)"


def read_claims(path: Path) -> ClaimsFile:
    """Read a claims file and the tables that it names.

    Raises:
        Problems: the file is invalid; lists all problems.
        BadInput: it cannot be read, or is not such a file.
    """
    return claims_from_text(read_source(path, "a claims file"), where=str(path), folder=path.parent)


def claims_from_text(source: str, *, where: str, folder: Path | None = None) -> ClaimsFile:
    """Read claims from the text of a claims file; without a folder, the text cannot refer to tables."""
    with time_limit(SECONDS, "the claims file takes too long to read", where=where):
        data = read_document(source, where=where)
        if not isinstance(data, dict) or "costproof_claims" not in data:
            raise BadInput("not a claims file", where=f"$ in {where}", expected=f"costproof_claims: {VERSION}")
        if data["costproof_claims"] != VERSION:
            raise BadInput(
                "unknown version of the claims file", where=f"$.costproof_claims in {where}",
                expected=VERSION, got=str(data["costproof_claims"])[:40],
            )  # fmt: skip
        reader = Reader()
        reader.known(data, TOP, "$")
        reader.conventions, reader.at = reader.stated(data, "$", {}, {})
        reader.holds = reader.conditions(data.get("holds", []), "$.holds")
        for i, row in enumerate(reader.items(data.get("claims", []), "$.claims")):
            reader.row(row, f"$.claims[{i}]")
        for i, table in enumerate(reader.items(data.get("tables", []), "$.tables")):
            reader.table(table, folder, f"$.tables[{i}]")
        if not reader.claims and not reader.problems:
            reader.problem("the claims file contains no claims", "$.claims")
        found = ClaimsFile(
            title=reader.text(data.get("title", ""), "$.title"),
            source=reader.text(data.get("source", ""), "$.source"),
            target=reader.text(data.get("target", ""), "$.target"),
            workload=reader.texts(data.get("workload", {}), "$.workload"),
            claims=reader.distinct(lambda c: (c.id, c.metric), "two claims have the same id"),
        )
        reader.finish(f"the claims file {where} is wrong")
        return found


class Reader:
    """Builds claims from rows of YAML files and tables, and collects all errors."""

    def __init__(self, *, formulas: bool = True) -> None:
        self.formulas = formulas
        """Whether a claim may be a formula; otherwise it must be a printed number."""
        self.conventions: dict[str, str] = {}
        self.at: dict[str, int] = {}
        self.holds: tuple[Condition, ...] = ()
        """The conditions that apply to all claims of the file."""
        self.claims: list[PublishedClaim] = []
        self.problems: list[CostproofError] = []

    def row(self, row: YamlValue, where: str) -> list[PublishedClaim]:
        """Read the claims of one row, one for each metric."""
        if not isinstance(row, dict):
            self.problem("a claim must be a map", where, expected="stage and at least one metric")
            return []
        self.known(row, (*PLACE, *_METRICS), where)
        stage, invocation, module, name = (
            self.text(row.get(k, ""), key(where, k)) for k in ("stage", "invocation", "module", "id")
        )
        if not stage:
            self.problem("a claim has no stage", where, expected="stage: NAME, or total")
        metrics = [m for m in _METRICS if m in row]
        if not metrics:
            self.problem("a claim states no metric", where, expected="one of " + ", ".join(_METRICS))
        name = name or ".".join(x for x in (stage, invocation, module) if x)
        conventions, at = self.stated(row, where, self.conventions, self.at)
        found = []
        for metric in metrics:
            value = self.value(row[metric], key(where, metric), metric)
            if value is not None:
                found.append(
                    PublishedClaim(
                        name, where, stage, metric, value, invocation, module, dict(conventions), dict(at), self.holds
                    )
                )
        self.claims += found
        if len(self.claims) > _MOST_CLAIMS:
            raise BadInput("too many claims", where=where, expected=f"at most {_MOST_CLAIMS:,}")
        return found

    def table(self, given: YamlValue, folder: Path | None, where: str) -> None:
        """Read the claims of a table.

        In the file, ``columns`` maps a claim's key (``stage``, ``flops``) to a column, ``units`` a metric to the unit
        of its column (``G``), and ``stages`` the table's stage names to the target's; rows of other stages are skipped.
        """
        if not isinstance(given, dict):
            self.problem("a table must be a map", where, expected="keys " + ", ".join(TABLE))
            return
        self.known(given, TABLE, where)
        columns, units, stages = (self.texts(given.get(k, {}), f"{where}.{k}") for k in ("columns", "units", "stages"))
        name = self.text(given.get("file", ""), f"{where}.file")
        if not name or folder is None:
            self.problem(
                "a table must name its file", f"{where}.file", expected="a path in the folder of the claims file"
            )
        elif not (folder / name).resolve().is_relative_to(folder.resolve()):
            self.problem("a table lies outside the folder of the claims file", f"{where}.file", got=name)
        elif "stage" not in columns:
            self.problem(
                "columns must name the column that holds the stage", f"{where}.columns", expected="stage: COLUMN"
            )
        else:
            for row in self.read(folder / name, tuple(columns.values())):
                claim: dict[str, YamlValue] = {k: row.cells[c] for k, c in columns.items() if c in row.cells}
                claim |= {k: f"{v} {units[k]}" for k, v in claim.items() if k in units}
                claim |= {k: given[k] for k in ("conventions",) if k in given}
                if not stages or str(claim.get("stage")) in stages:
                    claim |= {"stage": stages[str(claim["stage"])]} if stages else {}
                    self.row(claim, row.where)

    def read(self, path: Path, required: Sequence[str], more: Sequence[str] | None = None) -> list[ClaimTableRow]:
        """Read the rows of a table with :func:`costproof.claims.amounts.read_table`; empty if it cannot be used."""
        try:
            return read_table(path, self.problems, required, more)
        except CostproofError as error:
            self.problems.append(error)
            return []

    def stated(
        self, given: Mapping[str, YamlValue], where: str, conventions: Mapping[str, str], at: Mapping[str, int]
    ) -> tuple[dict[str, str], dict[str, int]]:
        """Return the conventions and symbol values of a claim, with those of its table or file as defaults."""
        words, numbers = dict(conventions), dict(at)
        for name, value in self.texts(given.get("conventions", {}), key(where, "conventions")).items():
            words[name] = value
            if (name, value) not in STATED:
                allowed = [v for k, v in STATED if k == name] or sorted({k for k, _ in STATED})
                self.problem("no such convention", key(where, f"conventions.{name}"), "one of " + ", ".join(allowed),
                             value[:60])  # fmt: skip
        for name, value in self.texts(given.get("at", {}), key(where, "at")).items():
            if value.isascii() and value.isdigit() and len(value) <= 18:
                numbers[name] = int(value)
            else:
                self.problem("the value of a symbol must be an integer", key(where, f"at.{name[:60]}"), got=value[:60])
        return words, numbers

    def value(self, given: YamlValue, where: str, metric: Metric) -> Amount | Formula | None:
        """Parse a printed number or a formula; record an error and return ``None`` for any other text."""
        if not isinstance(given, str):
            self.problem("a claim must be a number or a formula", where)
            return None
        try:
            if is_number(given) or not self.formulas:
                return amount(given, where=where, metric=metric)
            parse(given)
        except CostproofError as error:
            error.where = where if error.where == where else f"{where}: {error.where}"
            self.problems.append(error)
            return None
        return Formula(given)

    def conditions(self, given: YamlValue, where: str) -> tuple[Condition, ...]:
        """Parse the conditions under which claims apply, as expressions that must be at least 0."""
        found = tuple(self.text(one, f"{where}[{i}]") for i, one in enumerate(self.items(given, where)))
        for i, one in enumerate(found):
            try:
                parse(one)
            except CostproofError as error:
                error.where = f"{where}[{i}]: {error.where}"
                self.problems.append(error)
        return tuple(Condition(f"{one} >= 0", one) for one in found)

    def items(self, given: YamlValue, where: str) -> list[YamlValue]:
        if isinstance(given, list):
            return given
        self.problem("claims, tables and conditions must be lists", where)
        return []

    def texts(self, given: YamlValue, where: str) -> dict[str, str]:
        if not isinstance(given, dict):
            self.problem("this must be a map", where)
            return {}
        return {k: self.text(v, f"{where}.{k}") for k, v in given.items()}

    def text(self, given: YamlValue, where: str) -> str:
        if isinstance(given, str) and len(given) <= 2_000:
            return given
        self.problem("this must be a short text", where)
        return ""

    def known(self, given: Mapping[str, YamlValue], allowed: tuple[str, ...], where: str) -> None:
        """Record an error for each key that is not known."""
        for name in given:
            if name not in allowed:
                self.problem("unknown key", key(where, name[:60]), "one of " + ", ".join(allowed))

    def distinct(self, key: Callable[[PublishedClaim], Hashable], what: str) -> tuple[PublishedClaim, ...]:
        """Return the claims; record an error for each pair of claims on the same quantity."""
        seen: dict[Hashable, str] = {}
        for claim in self.claims:
            if (before := seen.setdefault(key(claim), claim.where)) != claim.where:
                self.problem(what, claim.where, got=f"{claim.id} as in {before}")
        return tuple(self.claims)

    def problem(self, what: str, where: str, expected: object = NOT_GIVEN, got: object = NOT_GIVEN) -> None:
        self.problems.append(BadInput(what, where=where, expected=expected, got=got))

    def finish(self, what: str) -> None:
        """Raise :class:`Problems` if any error was recorded."""
        if self.problems:
            raise Problems(what, self.problems[:MOST_PROBLEMS])


def key(where: str, name: str) -> str:
    """Return the path of a key for messages: ``$.claims[0].stage``, or in a table ``numbers.csv, line 3, stage``."""
    return f"{where}.{name}" if where.startswith("$") else f"{where}, {name}"


MEANINGS = {
    "costproof_claims": f"The version of this form: {VERSION}.",
    "title": "What these claims are.",
    "source": "Where they come from.",
    "target": "What they are about; the command line may say it instead.",
    "workload": "The run that they were made on: settings of the target, as its options spell them.",
    "conventions": "How they were counted, as far as it is known. A claim may have its own.",
    "at": "Values of symbols, outside of which the claims say nothing. A claim may have its own.",
    "holds": "Expressions in symbols, none of which is negative where the claims are made.",
    "id": "A name for messages; stage, invocation and module otherwise.",
    "stage": "A stage of the target, or total.",
    "invocation": "One of the runs of the stage.",
    "module": "A pattern of modules: *, ?, [0-3,12]; (root) is the model itself.",
    "file": "A .csv or .json below the folder of this file.",
    "columns": "Key of a claim -> column of the table.",
    "units": "Metric -> unit of its column, such as G.",
    "stages": "The table's words for stages -> ours; other rows are left out.",
    "claims": "One claim for each stage, invocation or module.",
    "tables": "Claims that stand in a file of their own.",
}


def claims_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the claims files that :func:`read_claims` reads."""
    words: dict[str, list[str]] = {}
    for name, value in STATED:
        words.setdefault(name, []).append(value)
    shared = {
        "conventions": _closed({name: {"enum": values} for name, values in words.items()}),
        "at": MAP | {"additionalProperties": {"type": ["integer", "string"], "pattern": "^[0-9]{1,18}$", "minimum": 0}},
    }
    metrics = {name: SCALAR | {"description": info.meaning} for name, info in (SUMMED | PEAK_METRICS).items()}
    claim = _closed({name: shared.get(name, SCALAR) for name in PLACE} | metrics)
    claim |= {"required": ["stage"], "anyOf": [{"required": [name]} for name in metrics]}
    table = _closed({name: shared.get(name, SCALAR if name == "file" else MAP) for name in TABLE})
    table |= {"required": ["file", "columns"]}
    table["properties"]["columns"] |= {"required": ["stage"]}
    own = shared | {
        "costproof_claims": {"enum": [int(VERSION), VERSION]},
        "workload": MAP,
        "holds": {"type": "array", "items": SCALAR},
        "claims": {"type": "array", "items": claim},
        "tables": {"type": "array", "items": table},
    }
    schema = _closed({name: own.get(name, SCALAR) for name in TOP})
    some = [{"required": [name], "properties": {name: {"minItems": 1}}} for name in ("claims", "tables")]
    return form_schema("claims.yaml", schema | {"required": ["costproof_claims"], "anyOf": some})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    described = {k: v | ({"description": MEANINGS[k]} if k in MEANINGS else {}) for k, v in properties.items()}
    return {"type": "object", "properties": described, "additionalProperties": False}


_REQUIRED: Final = ("name", "stage", "value")
_MORE: Final = ("unit", "invocation")
_GRAMMAR: Final = "NAME=VALUE, NAME@STAGE=VALUE, NAME@STAGE:INVOCATION=VALUE or FILE.csv"
_PAIR: Final = re.compile(r"(?P<name>[^=@]+)(?:@(?P<stage>[^=:@]+)(?::(?P<invocation>[^=@]+))?)?=(?P<value>.+)")
_SUFFIX: Final = re.compile(r"(?P<value>.*?)\s*(?P<unit>flop|mac)s?", re.IGNORECASE)
_LONGEST: Final = 80


def own_claims(
    given: Iterable[str], places: Mapping[str, Sequence[str]], default: str = TOTAL
) -> tuple[ClaimsFile, ...]:
    """Read a user's own numbers as claims files, one file for each name that the user gave.

    Args:
        given: pairs and paths of CSV files, as :data:`_GRAMMAR` has them.
        places: the invocations of each stage.
        default: the stage of a number that names none.

    Raises:
        Problems: everything that is wrong with them.
    """
    reader = Reader(formulas=False)
    for text in given:
        pair = _PAIR.fullmatch(text.strip())
        if pair is not None:
            rows = [_pair(pair, text)]
        elif Path(text).suffix.lower() == ".csv":
            rows = reader.read(Path(text), _REQUIRED, _MORE)
        else:
            reader.problem("a number of your own needs a name and a value", "--add", _GRAMMAR, text[:_LONGEST])
            continue
        for row in rows:
            _claim(reader, row, places, default)
    claims = reader.distinct(lambda c: (c.id, c.stage, c.invocation), "this number is given twice")
    reader.finish("your own numbers cannot be used")
    by_name: dict[str, list[PublishedClaim]] = {}
    for claim in claims:
        by_name.setdefault(claim.id, []).append(claim)
    return tuple(ClaimsFile(name, "", "", {}, tuple(found)) for name, found in by_name.items())


def _pair(pair: re.Match[str], text: str) -> ClaimTableRow:
    cells = {k: v.strip() for k, v in pair.groupdict().items() if v}
    if (ending := _SUFFIX.fullmatch(cells["value"])) is not None:
        cells |= {"value": ending["value"], "unit": ending["unit"].lower()}
    return ClaimTableRow(cells, f"--add {text[:_LONGEST]}")


def _claim(reader: Reader, row: ClaimTableRow, places: Mapping[str, Sequence[str]], default: str) -> None:
    """Convert a row of a user's numbers to a claim, and check that the target has this stage and invocation."""
    for column in ("name", "value"):
        if not row.cells.get(column):
            reader.problem(f"a number has no {column}", key(row.where, column), "a text", "an empty cell")
            return
    stage, call = row.cells.get("stage", default), row.cells.get("invocation", "")
    if stage not in (known := (*places, TOTAL)):
        reader.problems.append(no_such("stage", stage[:_LONGEST], known, where=key(row.where, "stage")))
    elif call and call not in (calls := places.get(stage) or [NO_CALL]):
        reader.problems.append(no_such("call", call[:_LONGEST], calls, where=key(row.where, "invocation")))
    else:
        name, value = row.cells["name"][:_LONGEST], row.cells["value"]
        unit: dict[str, YamlValue] = {k: v for k, v in row.cells.items() if k == "unit"}
        reader.row({"id": name, "stage": stage, "invocation": call, "flops": value, "conventions": unit}, row.where)
