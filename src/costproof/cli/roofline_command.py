"""Define ``costproof roofline``, which bounds the time of a run on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.options import device_option, format_option, options
from costproof.cli.output import emit, terminal_width
from costproof.cli.params import OPERAND, ChoiceParam
from costproof.ledger.run import ALL_SOURCES
from costproof.reports.outputs import variant


@click.command()
@click.argument("target", type=OPERAND)
@device_option("Device", required=True)
@options("math")
@click.option(
    "--source", type=ChoiceParam(*ALL_SOURCES),
    help="Source of the counts in a capture.  [default: the first that has them]",
)  # fmt: skip
@click.option(
    "--routing",
    default="bound",
    metavar="bound|uniform|FILE",
    help="Routed experts that a call reads: at most min(E, T k), the mean of uniform routing, or a routing in FILE.",
)
@options("config")
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
    """Bound the time of TARGET on a device from below, and find where its settings change the limiting resource.

    TARGET is a target with settings (deepseek-ocr@gundam:2x2,batch=4), a capture, a folder of reports or a baseline.
    The roofline bound of each part is the longer of two times: its products at the peak rate, and its bytes at the
    memory bandwidth. This is a bound, not a prediction. Needs no torch.

    The exit code is 3 if a cost of the run is unknown.
    """
    how = variant("roofline", kind, output)
    found = api.roofline(target, on=device, config=config, math=math, source=source, routing=routing, **trust)
    inputs = [p for p in (Path(target), Path(routing)) if p.exists()]
    emit(how.text(found, terminal_width(output)), output, inputs=inputs)
    return found.exit_code
