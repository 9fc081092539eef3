"""Define ``costproof render``, which converts a capture to a report format."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.options import device_option, options
from costproof.cli.output import emit, print_summary, shown_on_terminal, terminal_width, two_columns
from costproof.cli.params import FILE, NameParam
from costproof.ledger.errors import EXIT_OK, BadInput
from costproof.reports.outputs import OUTPUTS, REGISTRY, formats


@click.command(
    help="Convert CAPTURE, a file or the folder of a report, to one of the report formats.\n\nFormats: "
    + ", ".join(o.name for o in OUTPUTS if o.of_capture)
    + ", and those of installed plug-ins. If the format states a verdict, the exit code is the verdict."
)
@click.argument("capture", type=FILE, required=False)
@click.option(
    "-f",
    "--format",
    "name",
    type=NameParam(lambda target: formats()),
    metavar="FORMAT",
    help="Output format; --list lists them.",
)
@options("output")
@device_option("With html: add the roofline of this device")
@click.option("--list", "listing", is_flag=True, help="List the formats.")
def render(capture: Path | None, name: str | None, output: Path | None, device: str | None, listing: bool) -> int:
    if listing:
        emit(two_columns(formats().items(), terminal_width(output)), output)
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
    if name == "summary" and shown_on_terminal(output):
        print_summary(found)
    else:
        emit(found.render(name, terminal_width(output)), output)
    return found.exit_code if chosen.states_verdict else EXIT_OK
