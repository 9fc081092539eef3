"""Define ``costproof peaks``, which finds the peak of live activations of every stage."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.options import format_option, options, run_command
from costproof.cli.output import check_apart, emit, terminal_width
from costproof.cli.params import TARGET
from costproof.cli.progress import show_progress
from costproof.cli.target_command import TargetCommand
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@format_option("peaks")
@options("output", "request", "dry-run", "config", "preset", "layers", "trust-remote-code", "rules", "progress")
@run_command
def peaks(run: api.RunRequest, kind: str | None, output: Path | None, progress: str) -> int:
    """Find the peak of live activations of every stage of TARGET, in its graph and in the eager module.

    The graph frees a tensor after its last reader; variables of the module hold some tensors longer. The gap between
    the two is listed tensor by tensor, with the variables that hold each. Sizes are those of a run on a CPU, but
    nothing is computed. Inputs and outputs count, parameters and buffers do not.

    Exit code 3 if a peak is unknown.
    """
    how = variant("peaks", kind, output)
    check_apart(output)
    with show_progress(progress) as say:
        found = api.peaks(run, progress=say)
    emit(how.text(found, terminal_width(output)), output)
    return found.exit_code
