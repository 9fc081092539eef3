"""``costproof machine``: one device with its sources, or this one, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from costproof import api
from costproof.cli.kinds import DEVICE, Choice
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, screen
from costproof.ledger.errors import BadInput
from costproof.reports.outputs import variant


@click.command()
@click.argument("name", required=False, type=DEVICE)
@click.option("--measure", is_flag=True, help="Measure this machine instead, and call it NAME (here unless given).")
@click.option("--run", type=Choice("cpu", "cuda"), default="cpu", show_default=True, help="What --measure measures.")
@format_option("device")
@options("output")
def machine(name: str | None, measure: bool, run: Literal["cpu", "cuda"], kind: str | None, output: Path | None) -> int:
    """Show the figures of the device NAME, each with the source that it is quoted from.

    NAME is one that costproof machines lists, or a FILE.json. With --measure, products and a convolution for each
    dtype, a large copy and a large read are timed on this machine; -o FILE.json writes what --on takes. Needs torch.
    """
    if name is None and not measure:
        raise BadInput(
            "missing argument 'NAME'", where="costproof machine", fix="costproof machines lists them; or --measure"
        )
    how = variant("device", kind, output)
    found = api.measure_machine(run, name=name or "here") if measure else api.machine(name or "")
    emit(how.text(found, screen(output)), output)
    return 0
