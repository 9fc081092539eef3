"""Define ``costproof machines`` and ``costproof machine``: known devices, and this machine, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from costproof import api
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, terminal_width
from costproof.cli.params import DEVICE, ChoiceParam
from costproof.cli.progress import show_progress
from costproof.ledger.errors import BadInput
from costproof.reports.devices import devices_text
from costproof.reports.outputs import variant


@click.command()
def machines() -> int:
    """List the devices with known peak rates. Names are exact; costproof machine NAME shows the sources."""
    emit(devices_text((api.machine(name) for name in api.machines()), terminal_width()), None)
    return 0


@click.command()
@click.argument("name", required=False, type=DEVICE)
@click.option("--measure", is_flag=True, help="Measure this machine and call it NAME.  [default: here]")
@click.option(
    "--run", type=ChoiceParam("cpu", "cuda"), default="cpu", show_default=True, help="Device that --measure measures."
)
@format_option("device")
@options("output", "progress")
def machine(
    name: str | None, measure: bool, run: Literal["cpu", "cuda"], kind: str | None, output: Path | None, progress: str
) -> int:
    """Show the figures of the device NAME, each with its quoted source.

    NAME is a name from costproof machines or a FILE.json. With --measure, matrix products and a convolution per dtype,
    a large copy and a large read are timed on this machine, which needs torch; -o FILE.json writes a file for --on.
    """
    if name is None and not measure:
        raise BadInput(
            "missing argument 'NAME'", where="costproof machine", fix="costproof machines lists them; or --measure"
        )
    how = variant("device", kind, output)
    if measure:
        with show_progress(progress) as say:
            found = api.measure_machine(run, name=name or "here", progress=say)
    else:
        found = api.machine(name or "")
    emit(how.text(found, terminal_width(output)), output)
    return 0
