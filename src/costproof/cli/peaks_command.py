"""``costproof peaks``: the peak of live activations of every stage."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import TARGET
from costproof.cli.options import format_option, of_run, options
from costproof.cli.output import check_apart, emit, screen
from costproof.cli.progress import progress as shown
from costproof.cli.target_command import TargetCommand
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@format_option("peaks")
@options("output", "request", "dry-run", "config", "preset", "layers", "trust-remote-code", "rules", "progress")
@of_run
def peaks(run: api.RunRequest, kind: str | None, output: Path | None, progress: str) -> int:
    """Find the peak of live activations of every stage of TARGET, by its graph and by the module as written.

    The graph frees a tensor after its last reader; the variables of the module hold some for longer. The gap between
    the two is told tensor by tensor, with the variables that hold it. Sizes are those of a run on a CPU, but nothing
    is computed. Inputs and outputs count, parameters and buffers do not.

    Exit code 3 if a peak is not known.
    """
    how = variant("peaks", kind, output)
    check_apart(output)
    with shown(progress) as say:
        found = api.peaks(run, progress=say)
    emit(how.text(found, screen(output)), output)
    return found.exit_code
