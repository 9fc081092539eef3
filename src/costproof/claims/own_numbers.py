"""A user's own FLOP numbers as claims: ``NAME@STAGE[:INVOCATION]=VALUE`` or a CSV, all problems at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from costproof.claims.reading import NO_CALL, Reader, key
from costproof.claims.tables import TableRow
from costproof.claims.types import TOTAL, Claim, ClaimsFile
from costproof.ledger.document import YamlValue
from costproof.ledger.errors import no_such

_REQUIRED: Final = ("name", "stage", "value")
_MORE: Final = ("unit", "invocation")
_GRAMMAR: Final = "NAME=VALUE, NAME@STAGE=VALUE, NAME@STAGE:INVOCATION=VALUE or FILE.csv"
_PAIR: Final = re.compile(r"(?P<name>[^=@]+)(?:@(?P<stage>[^=:@]+)(?::(?P<invocation>[^=@]+))?)?=(?P<value>.+)")
_SUFFIX: Final = re.compile(r"(?P<value>.*?)\s*(?P<unit>flop|mac)s?", re.IGNORECASE)
_LONGEST: Final = 80


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
    by_name: dict[str, list[Claim]] = {}
    for claim in claims:
        by_name.setdefault(claim.id, []).append(claim)
    return tuple(ClaimsFile(name, "", "", {}, tuple(found)) for name, found in by_name.items())


def _pair(pair: re.Match[str], text: str) -> TableRow:
    cells = {k: v.strip() for k, v in pair.groupdict().items() if v}
    if (ending := _SUFFIX.fullmatch(cells["value"])) is not None:
        cells |= {"value": ending["value"], "unit": ending["unit"].lower()}
    return TableRow(cells, f"--add {text[:_LONGEST]}")


def _claim(reader: Reader, row: TableRow, places: Mapping[str, Sequence[str]], default: str) -> None:
    """A row of a user's in the shape of a claim, and whether there is such a place."""
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
