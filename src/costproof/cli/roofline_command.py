"""``costproof roofline``: what a run takes at least on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.kinds import DEVICE, FILE, SIDE, Choice
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, screen
from costproof.ledger.run import ALL_SOURCES
from costproof.reports.outputs import variant


@click.command()
@click.argument("target", type=SIDE)
@click.option(
    "--on",
    "device",
    required=True,
    type=DEVICE,
    metavar="DEVICE|FILE",
    help="The device; costproof machines lists them.",
)
@click.option("--math", metavar="DTYPE", help="Whose peak is the roof, such as tf32; the run's dtype unless given.")
@click.option(
    "--source", type=Choice(*ALL_SOURCES), help="Whose counts of a capture; the first that has them unless given."
)
@click.option(
    "--routing",
    default="bound",
    metavar="bound|uniform|FILE",
    help="Routed experts that a call reads: at most min(E, T k), the mean of uniform routing, or a given choice.",
)
@click.option("--config", type=FILE, metavar="FILE", help="Configuration of the model; the published one unless given.")
@format_option("roofline")
@options("output", "trust-remote-code", "rules")
def roofline(
    target: str,
    device: str,
    math: str | None,
    source: str | None,
    routing: str,
    config: Path | None,
    kind: str | None,
    output: Path | None,
    **trust: Any,
) -> int:
    """Say what TARGET takes at least on a device, and where its settings change what it waits for.

    TARGET is a target with settings, deepseek-ocr@gundam:2x2,batch=4, or a capture, a folder of reports or a baseline.
    Each part is under the roof of the device: the products at its peak, the bytes at its bandwidth, whichever takes
    longer. Needs no torch. This is a bound, not a prediction.

    The exit code is 3 where not everything that the run does is known.
    """
    how = variant("roofline", kind, output)
    found = api.roofline(target, on=device, config=config, math=math, source=source, routing=routing, **trust)
    inputs = [p for p in (Path(target), Path(routing)) if p.exists()]
    emit(how.text(found, screen(output)), output, inputs=inputs)
    return found.exit_code
