"""Reading claims: YAML files, the tables that they name, and a user's own numbers, all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final

from costproof.algebra.conditions import Condition
from costproof.algebra.symbols import parse
from costproof.claims.amounts import amount, is_number
from costproof.claims.catalogue import STATED
from costproof.claims.tables import TableRow, read_table
from costproof.claims.types import Amount, Claim, ClaimsFile, Formula
from costproof.ledger.document import YamlValue, read_document, read_source
from costproof.ledger.errors import NOT_GIVEN, BadInput, CostproofError, Problems
from costproof.ledger.metrics import METRICS, PEAK_METRICS, Metric
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
_METRICS: Final = (*METRICS, *PEAK_METRICS)
SECONDS: Final = 60
"""Of the processor, for a file and its tables."""
_MOST_CLAIMS: Final = 2_000
MOST_PROBLEMS: Final = 20
NO_CALL: Final = "(none)"


def read_claims(path: Path) -> ClaimsFile:
    """Read a claims file and the tables that it names.

    Raises:
        Problems: everything that is wrong with it.
        BadInput: it cannot be read, or is not such a file.
    """
    return claims_from_text(read_source(path, "a claims file"), where=str(path), folder=path.parent)


def claims_from_text(source: str, *, where: str, folder: Path | None = None) -> ClaimsFile:
    """:func:`read_claims` for a text; without a folder it cannot name tables."""
    with time_limit(SECONDS, "the claims file takes too long to read", where=where):
        return _claims(source, where, folder)


def _claims(source: str, where: str, folder: Path | None) -> ClaimsFile:
    data = read_document(source, where=where)
    if not isinstance(data, dict) or "costproof_claims" not in data:
        raise BadInput("not a claims file", where=f"$ in {where}", expected=f"costproof_claims: {VERSION}")
    if data["costproof_claims"] != VERSION:
        raise BadInput(
            "this claims file has another version", where=f"$.costproof_claims in {where}",
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
        reader.problem("a claims file without claims says nothing", "$.claims")
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
    """Makes claims of rows, whatever they stood in, and collects problems while it does."""

    def __init__(self, *, formulas: bool = True) -> None:
        self.formulas = formulas
        """Whether a claim may be a formula; otherwise it is a printed number."""
        self.conventions: dict[str, str] = {}
        self.at: dict[str, int] = {}
        self.holds: tuple[Condition, ...] = ()
        """What all claims state."""
        self.claims: list[Claim] = []
        self.problems: list[CostproofError] = []

    def row(self, row: YamlValue, where: str) -> list[Claim]:
        """The claims of one row, one for each metric."""
        if not isinstance(row, dict):
            self.problem("a claim is a map", where, expected="stage and at least one metric")
            return []
        self.known(row, (*PLACE, *_METRICS), where)
        stage, invocation, module, name = (
            self.text(row.get(k, ""), key(where, k)) for k in ("stage", "invocation", "module", "id")
        )
        if not stage:
            self.problem("a claim has no stage", where, expected="stage: NAME, or total")
        metrics = [m for m in _METRICS if m in row]
        if not metrics:
            self.problem("a claim claims nothing", where, expected="one of " + ", ".join(_METRICS))
        name = name or ".".join(x for x in (stage, invocation, module) if x)
        conventions, at = self.stated(row, where, self.conventions, self.at)
        found = []
        for metric in metrics:
            value = self.value(row[metric], key(where, metric), metric)
            if value is not None:
                found.append(
                    Claim(
                        name, where, stage, metric, value, invocation, module, dict(conventions), dict(at), self.holds
                    )
                )
        self.claims += found
        if len(self.claims) > _MOST_CLAIMS:
            raise BadInput("too many claims", where=where, expected=f"at most {_MOST_CLAIMS:,}")
        return found

    def table(self, given: YamlValue, folder: Path | None, where: str) -> None:
        """The claims of a table: ``columns`` maps a claim's key (``stage``, ``flops``) to a column, ``units`` a metric
        to the unit of its column (``G``), ``stages`` the table's words for stages to ours; others are left out."""
        if not isinstance(given, dict):
            self.problem("a table is a map", where, expected="keys " + ", ".join(TABLE))
            return
        self.known(given, TABLE, where)
        columns, units, stages = (self.texts(given.get(k, {}), f"{where}.{k}") for k in ("columns", "units", "stages"))
        name = self.text(given.get("file", ""), f"{where}.file")
        if not name or folder is None:
            self.problem("a table names its file", f"{where}.file", expected="a path beside the claims file")
        elif not (folder / name).resolve().is_relative_to(folder.resolve()):
            self.problem("a table lies outside the folder of the claims file", f"{where}.file", got=name)
        elif "stage" not in columns:
            self.problem("no column says what a row is about", f"{where}.columns", expected="stage: COLUMN")
        else:
            for row in self.read(folder / name, tuple(columns.values())):
                claim: dict[str, YamlValue] = {k: row.cells[c] for k, c in columns.items() if c in row.cells}
                claim |= {k: f"{v} {units[k]}" for k, v in claim.items() if k in units}
                claim |= {k: given[k] for k in ("conventions",) if k in given}
                if not stages or str(claim.get("stage")) in stages:
                    claim |= {"stage": stages[str(claim["stage"])]} if stages else {}
                    self.row(claim, row.where)

    def read(self, path: Path, required: Sequence[str], more: Sequence[str] | None = None) -> list[TableRow]:
        """The rows of a table, see :func:`costproof.claims.tables.read_table`; none if it cannot be used."""
        try:
            return read_table(path, self.problems, required, more)
        except CostproofError as error:
            self.problems.append(error)
            return []

    def stated(
        self, given: Mapping[str, YamlValue], where: str, conventions: Mapping[str, str], at: Mapping[str, int]
    ) -> tuple[dict[str, str], dict[str, int]]:
        """Conventions, and symbols with values, of these and of what stands around them."""
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
                self.problem("a symbol has an integer for a value", key(where, f"at.{name[:60]}"), got=value[:60])
        return words, numbers

    def value(self, given: YamlValue, where: str, metric: Metric) -> Amount | Formula | None:
        """A printed number or a formula."""
        if not isinstance(given, str):
            self.problem("a claim is a number or a formula", where)
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
        """Return the conditions of expressions that are not negative where the claims are made."""
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
        self.problem("claims, tables and conditions are lists", where)
        return []

    def texts(self, given: YamlValue, where: str) -> dict[str, str]:
        if not isinstance(given, dict):
            self.problem("this is a map", where)
            return {}
        return {k: self.text(v, f"{where}.{k}") for k, v in given.items()}

    def text(self, given: YamlValue, where: str) -> str:
        if isinstance(given, str) and len(given) <= 2_000:
            return given
        self.problem("this is a short text", where)
        return ""

    def known(self, given: Mapping[str, YamlValue], allowed: tuple[str, ...], where: str) -> None:
        """Report keys that mean nothing."""
        for name in given:
            if name not in allowed:
                self.problem("unknown key", key(where, name[:60]), "one of " + ", ".join(allowed))

    def distinct(self, key: Callable[[Claim], Hashable], what: str) -> tuple[Claim, ...]:
        """The claims, of which no two may be about the same."""
        seen: dict[Hashable, str] = {}
        for claim in self.claims:
            if (before := seen.setdefault(key(claim), claim.where)) != claim.where:
                self.problem(what, claim.where, got=f"{claim.id} as in {before}")
        return tuple(self.claims)

    def problem(self, what: str, where: str, expected: object = NOT_GIVEN, got: object = NOT_GIVEN) -> None:
        self.problems.append(BadInput(what, where=where, expected=expected, got=got))

    def finish(self, what: str) -> None:
        """Raise :class:`Problems` with all that is wrong, if anything is."""
        if self.problems:
            raise Problems(what, self.problems[:MOST_PROBLEMS])


def key(where: str, name: str) -> str:
    """The place of a key: ``$.claims[0].stage``, and in a row ``numbers.csv, line 3, stage``."""
    return f"{where}.{name}" if where.startswith("$") else f"{where}, {name}"
