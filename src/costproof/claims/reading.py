"""Reading claims files: YAML and the tables that it names, all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from costproof.claims.amounts import amount, is_number
from costproof.claims.catalogue import STATED
from costproof.claims.document import Value, read_document, read_source
from costproof.claims.tables import rows_of
from costproof.claims.types import Amount, Claim, ClaimsFile, Formula
from costproof.ledger.errors import NOT_GIVEN, BadInput, CostproofError, Problems
from costproof.ledger.metrics import METRICS
from costproof.ledger.symbols import parse

VERSION: Final = "1"
_TOP: Final = ("costproof_claims", "title", "source", "target", "workload", "conventions", "at", "claims", "tables")
_PLACE: Final = ("id", "stage", "invocation", "module", "conventions", "at")
_METRICS: Final = tuple(METRICS)
_MOST_CLAIMS: Final = 2_000


def read_claims(path: Path) -> ClaimsFile:
    """Read a claims file and the tables that it names.

    Raises:
        Problems: everything that is wrong with it.
        BadInput: it cannot be read, or is no such file.
    """
    return claims_from_text(read_source(path, "a claims file"), where=str(path), folder=path.parent)


def claims_from_text(source: str, *, where: str, folder: Path | None = None) -> ClaimsFile:
    """:func:`read_claims` for a text; without a folder it cannot name tables."""
    return _Reader(where, folder).file(read_document(source, where=where))


class _Reader:
    """Collects problems while it reads."""

    def __init__(self, where: str, folder: Path | None) -> None:
        self.where = where
        self.folder = folder
        self.problems: list[CostproofError] = []

    def file(self, data: Value) -> ClaimsFile:
        if not isinstance(data, dict) or "costproof_claims" not in data:
            raise BadInput(
                "this is no claims file", where=f"$ in {self.where}", expected=f"costproof_claims: {VERSION}"
            )
        if data["costproof_claims"] != VERSION:
            raise BadInput(
                "this claims file has another version", where=f"$.costproof_claims in {self.where}",
                expected=VERSION, got=str(data["costproof_claims"])[:40],
            )  # fmt: skip
        self.known(data, _TOP, "$")
        conventions = self.conventions(data.get("conventions", {}), "$.conventions")
        claims = self.claims(data, conventions, self.at(data.get("at", {}), "$.at"))
        if not claims and not self.problems:
            self.problem("a claims file without claims says nothing", "$.claims")
        seen: dict[tuple[str, str], str] = {}
        for claim in claims:
            if (claim.id, claim.metric) in seen:
                self.problem("two claims have the same id", claim.where, got=f"{claim.id}, {claim.metric}")
            seen[claim.id, claim.metric] = claim.where
        found = ClaimsFile(
            title=self.text(data.get("title", ""), "$.title"),
            source=self.text(data.get("source", ""), "$.source"),
            target=self.text(data.get("target", ""), "$.target"),
            workload=self.texts(data.get("workload", {}), "$.workload"),
            claims=tuple(claims),
        )
        if self.problems:
            raise Problems(f"the claims file {self.where} is wrong", self.problems[:20])
        return found

    def claims(self, data: Mapping[str, Value], conventions: Mapping[str, str], at: Mapping[str, int]) -> list[Claim]:
        found: list[Claim] = []
        rows = data.get("claims", [])
        tables = data.get("tables", [])
        if not isinstance(rows, list) or not isinstance(tables, list):
            self.problem("claims and tables are lists", "$.claims")
            return []
        for i, row in enumerate(rows):
            found += self.row(row, f"$.claims[{i}]", conventions, at)
        for i, table in enumerate(tables):
            try:
                for j, row in enumerate(rows_of(table, self.folder, f"$.tables[{i}]")):
                    found += self.row(row, f"$.tables[{i}], row {j + 1}", conventions, at)
            except CostproofError as error:
                self.problems.append(error)
        if len(found) > _MOST_CLAIMS:
            self.problem("too many claims", "$.claims", expected=f"at most {_MOST_CLAIMS}", got=str(len(found)))
            return []
        return found

    def row(self, row: Value, where: str, conventions: Mapping[str, str], at: Mapping[str, int]) -> list[Claim]:
        if not isinstance(row, dict):
            self.problem("a claim is a map", where, expected="stage and at least one metric")
            return []
        self.known(row, (*_PLACE, *_METRICS), where)
        stage = self.text(row.get("stage", ""), f"{where}.stage")
        if not stage:
            self.problem("a claim has no stage", where, expected="stage: NAME, or total")
        metrics = [m for m in _METRICS if m in row]
        if not metrics:
            self.problem("a claim claims nothing", where, expected="one of " + ", ".join(_METRICS))
        invocation = self.text(row.get("invocation", ""), f"{where}.invocation")
        module = self.text(row.get("module", ""), f"{where}.module")
        own = {**conventions, **self.conventions(row.get("conventions", {}), f"{where}.conventions")}
        values = {**at, **self.at(row.get("at", {}), f"{where}.at")}
        name = self.text(row.get("id", ""), f"{where}.id") or ".".join(x for x in (stage, invocation, module) if x)
        found = []
        for metric in metrics:
            value = self.value(row[metric], f"{where}.{metric}")
            if value is not None:
                found.append(Claim(name, where, stage, metric, value, invocation, module, dict(own), dict(values)))
        return found

    def value(self, given: Value, where: str) -> Amount | Formula | None:
        if not isinstance(given, str):
            self.problem("a claim is a number or a formula", where)
            return None
        try:
            if is_number(given):
                return amount(given, where=where)
            parse(given)
        except CostproofError as error:
            error.where = f"{where}: {error.where}" if error.where else where
            self.problems.append(error)
            return None
        return Formula(given)

    def conventions(self, given: Value, where: str) -> dict[str, str]:
        found = self.texts(given, where)
        for name, value in found.items():
            if (name, value) not in STATED:
                allowed = [v for k, v in STATED if k == name]
                self.problem(
                    "no such convention", f"{where}.{name}",
                    "one of " + ", ".join(allowed or sorted({k for k, _ in STATED})), value[:60],
                )  # fmt: skip
        return found

    def at(self, given: Value, where: str) -> dict[str, int]:
        found = {}
        for name, value in self.texts(given, where).items():
            if value.isascii() and value.isdigit() and len(value) <= 18:
                found[name] = int(value)
            else:
                self.problem("a symbol has an integer for a value", f"{where}.{name[:60]}", got=value[:60])
        return found

    def texts(self, given: Value, where: str) -> dict[str, str]:
        if not isinstance(given, dict):
            self.problem("this is a map", where)
            return {}
        return {k: self.text(v, f"{where}.{k}") for k, v in given.items()}

    def text(self, given: Value, where: str) -> str:
        if isinstance(given, str) and len(given) <= 2_000:
            return given
        self.problem("this is a short text", where)
        return ""

    def known(self, given: Mapping[str, Value], allowed: tuple[str, ...], where: str) -> None:
        for key in given:
            if key not in allowed:
                self.problem("no such key", f"{where}.{key[:60]}", "one of " + ", ".join(allowed))

    def problem(self, what: str, where: str, expected: object = NOT_GIVEN, got: object = NOT_GIVEN) -> None:
        self.problems.append(BadInput(what, where=where, expected=expected, got=got))
