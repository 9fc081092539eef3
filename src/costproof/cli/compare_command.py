"""``costproof compare``: the comparison of a capture's sources."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.cli.options import FILE, Choice


@click.command()
@click.argument("capture", type=FILE)
@click.option(
    "-f",
    "--format",
    "kind",
    type=Choice("md", "json"),
    help="md for people, json for programs; by the ending of -o unless given, else md.",
)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
def compare(capture: Path, kind: str | None, output: Path | None) -> int:
    """Compare the sources of CAPTURE, a file that capture or report wrote.

    The exit code is the verdict: 0 all exact or explained, 1 findings, 3 incomplete.
    """
    from costproof import api
    from costproof.cli.output import emit

    chosen = kind or ("json" if output is not None and output.suffix == ".json" else "md")
    found = api.compare(capture)
    emit(found.render(f"discrepancy-{chosen}"), output, inputs=(capture,))
    return found.exit_code
