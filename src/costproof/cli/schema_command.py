"""``costproof schema``: JSON Schemas of the files."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import Name
from costproof.cli.options import options
from costproof.cli.output import emit, rows
from costproof.ledger.files import json_text
from costproof.run.schemas import WRITTEN, file_kinds, schema_names


@click.command(
    help="Print the JSON Schema of the file kind NAME, or list the kinds.\n\nKinds: " + ", ".join(schema_names()) + "."
)
@click.argument("name", required=False, type=Name(lambda target: schema_names()))
@options("output")
def schema(name: str | None, output: Path | None) -> int:
    if name is None:
        kinds = [(k, f"{v.name} {v.version[0]}.{v.version[1]}") for k, v in file_kinds().items()]
        emit(rows([*kinds, *((name, "written by people") for name in WRITTEN)]), output)
    else:
        emit(json_text(api.schema(name)), output)
    return 0
