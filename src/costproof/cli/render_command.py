"""``costproof render``: a capture in one of the report formats."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.cli.options import FILE


@click.command()
@click.argument("capture", type=FILE, required=False)
@click.option("-f", "--format", "name", metavar="FORMAT", help="The format; --list names them.")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
@click.option("--list", "listing", is_flag=True, help="List the formats.")
def render(capture: Path | None, name: str | None, output: Path | None, listing: bool) -> int:
    """Turn CAPTURE into one of the report formats.

    Formats: capture-json, static-json, static-md, discrepancy-json, discrepancy-md, callgraph-json, graph-dot,
    graph-svg, graph-mmd, summary,
    and those of installed plug-ins. Where the text states a verdict, the exit code is the verdict.
    """
    from costproof.cli.output import emit
    from costproof.ledger.errors import EXIT_OK, BadInput
    from costproof.reports.formats import format_named, formats

    if listing:
        width = max(map(len, formats()))
        emit("".join(f"{f.name:<{width}}  {f.meaning}\n" for f in formats().values()), output)
        return EXIT_OK
    if capture is None or name is None:
        missing = "CAPTURE" if capture is None else "-f FORMAT"
        raise BadInput(
            f"{missing} is missing",
            where="costproof render",
            expected="CAPTURE and -f FORMAT",
            fix="costproof render --list names the formats",
        )
    chosen = format_named(name)
    from costproof import api

    found = api.compare(capture)
    emit(found.render(name), output, inputs=(capture,))
    return found.exit_code if chosen.states_verdict else EXIT_OK
