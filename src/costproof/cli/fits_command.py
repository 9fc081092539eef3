"""``costproof fits``: whether a run fits into a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.kinds import DEVICE, FILE, SIDE
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, screen
from costproof.reports.outputs import variant


@click.command()
@click.argument("target", type=SIDE)
@click.option("--on", "device", type=DEVICE, metavar="DEVICE|FILE", help="Whose memory; costproof machines lists them.")
@click.option("--memory", metavar="SIZE", help="How much memory there is instead: 80GB, 80GiB, or bytes.")
@click.option("--config", type=FILE, metavar="FILE", help="Configuration of the model; the published one unless given.")
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
    """Say whether TARGET fits into the memory of a device, and from which batch and length on it does not.

    TARGET is a target with settings, llama-3.1-8b@chat,batch=4,text_tokens=8000, or a capture, a folder of reports or a
    baseline. Weights and caches are exact; of activations there is an upper bound. Needs no torch.

    The exit code is 0 if it fits, 1 if it does not, and 3 if it is not known.
    """
    how = variant("fits", kind, output)
    found = api.fits(target, on=device, memory=memory, config=config, **trust)
    emit(
        how.text(found, screen(output)),
        output,
        inputs=[p for p in (Path(target),) if p.exists()],
    )
    return found.exit_code
