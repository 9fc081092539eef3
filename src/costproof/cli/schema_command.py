"""``costproof schema``: JSON Schemas of the files."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import Name
from costproof.cli.options import options
from costproof.cli.output import emit, rows, screen
from costproof.ledger.files import json_text


@click.command(
    help="Print the JSON Schema of the file kind NAME, or list the kinds.\n\nKinds: "
    + ", ".join(api.schema_names())
    + "."
)
@click.argument("name", required=False, type=Name(lambda target: api.schema_names()))
@options("output")
def schema(name: str | None, output: Path | None) -> int:
    if name is None:
        emit(rows(api.schemas().items(), screen(output)), output)
    else:
        emit(json_text(api.schema(name)), output)
    return 0
