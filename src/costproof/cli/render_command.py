"""``costproof render``: a capture in one of the report formats."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import DEVICE, FILE, Name
from costproof.cli.options import options
from costproof.cli.output import emit, on_screen, print_summary, rows, screen
from costproof.ledger.errors import EXIT_OK, BadInput
from costproof.reports.outputs import OUTPUTS, REGISTRY, formats


@click.command(
    help="Turn CAPTURE, a file or the folder of a report, into one of the report formats.\n\nFormats: "
    + ", ".join(o.name for o in OUTPUTS if o.of_capture)
    + ", and those of installed plug-ins. Where the text states a verdict, the exit code is the verdict."
)
@click.argument("capture", type=FILE, required=False)
@click.option(
    "-f",
    "--format",
    "name",
    type=Name(lambda target: formats()),
    metavar="FORMAT",
    help="The format; --list names them.",
)
@options("output")
@click.option(
    "--on",
    "device",
    type=DEVICE,
    metavar="DEVICE|FILE",
    help="Of html: also what the run takes at least on a device; costproof machines lists them.",
)
@click.option("--list", "listing", is_flag=True, help="List the formats.")
def render(capture: Path | None, name: str | None, output: Path | None, device: str | None, listing: bool) -> int:
    if listing:
        emit(rows(formats().items(), screen(output)), output)
        return EXIT_OK
    if capture is None or name is None:
        missing = "CAPTURE" if capture is None else "-f FORMAT"
        raise BadInput(
            f"{missing} is missing",
            where="costproof render",
            expected="CAPTURE and -f FORMAT",
            fix="costproof render --list names the formats",
        )
    chosen = REGISTRY.load(name)
    found = api.compare(capture, on=device)
    if device is not None and name != "html":
        raise BadInput(
            "this format shows no device", where=f"-f {name}", expected="-f html", fix="leave out --on, or use "
            "costproof roofline",
        )  # fmt: skip
    if name == "summary" and on_screen(output):
        print_summary(found)
    else:
        emit(found.render(name, screen(output)), output)
    return found.exit_code if chosen.states_verdict else EXIT_OK
