"""Define ``costproof fits``, which checks whether a run fits into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.options import device_option, format_option, options
from costproof.cli.output import emit, terminal_width
from costproof.cli.params import OPERAND
from costproof.reports.outputs import variant


@click.command()
@click.argument("target", type=OPERAND)
@device_option("Device whose memory is the limit")
@click.option("--memory", metavar="SIZE", help="Limit instead of a device: 80GB, 80GiB, or bytes.")
@options("config")
@format_option("fits")
@options("output", "trust-remote-code", "rules")
def fits(
    target: str,
    device: str | None,
    memory: str | None,
    config: Path | None,
    kind: str | None,
    output: Path | None,
    **trust: Any,
) -> int:
    """Check whether TARGET fits into the memory of a device, and up to which batch and length.

    TARGET is a target with settings (llama-3.1-8b@chat,batch=4,text_tokens=8000), a capture, a folder of reports or a
    baseline. Weights and caches are exact; activations are an upper bound. Needs torch only for quantised weights.

    The exit code is 0 if it fits, 1 if it does not, and 3 if that is unknown.
    """
    how = variant("fits", kind, output)
    found = api.fits(target, on=device, memory=memory, config=config, **trust)
    emit(how.text(found, terminal_width(output)), output, inputs=[p for p in (Path(target),) if p.exists()])
    return found.exit_code
