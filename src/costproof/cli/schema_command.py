"""``costproof schema``: JSON Schemas of the files."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.cli.options import FILE
from costproof.reports.outputs import kind_names


@click.command(
    help="Print the JSON Schema of the file kind NAME, or list the kinds.\n\nKinds: " + ", ".join(kind_names()) + "."
)
@click.argument("name", required=False)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
def schema(name: str | None, output: Path | None) -> int:
    from costproof.cli.output import emit
    from costproof.ledger.errors import EXIT_OK, BadInput, did_you_mean
    from costproof.ledger.files import json_text
    from costproof.ledger.schema import json_schema
    from costproof.reports.outputs import file_kinds

    kinds = file_kinds()
    if name is None:
        width = max(map(len, kinds))
        emit("".join(f"{k:<{width}}  {v.name} {v.version[0]}.{v.version[1]}\n" for k, v in kinds.items()), output)
        return EXIT_OK
    short = name.removesuffix(".json").removeprefix("costproof/")
    if short not in kinds:
        raise BadInput(
            "no such kind of file",
            where=name,
            expected="one of " + ", ".join(kinds),
            fix=did_you_mean(short, kinds),
        )
    emit(json_text(json_schema(kinds[short])), output)
    return EXIT_OK
