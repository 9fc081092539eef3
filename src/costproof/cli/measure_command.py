"""Define ``costproof measure``, which times a run and compares it with bounds."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.options import device_option, format_option, options, run_command
from costproof.cli.output import check_apart, emit, terminal_width
from costproof.cli.params import TARGET
from costproof.cli.progress import show_progress
from costproof.cli.target_command import TargetCommand
from costproof.reports.escape import visible
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@device_option("Device that it runs on; without it, this machine is measured first")
@options("math")
@click.option(
    "--predict", is_flag=True,
    help="Time each distinct operator in isolation instead of running the model, which then need not fit in memory.",
)  # fmt: skip
@click.option(
    "--compiled",
    is_flag=True,
    help="Also time each stage on a GPU under torch.compile, which takes minutes to compile.",
)
@format_option("measure")
@options("output", "request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "profile")
@options("trust-remote-code", "rules", "progress")
@run_command
def measure(
    run: api.RunRequest,
    device: str | None,
    math: str | None,
    predict: bool,
    compiled: bool,
    kind: str | None,
    output: Path | None,
    progress: str,
) -> int:
    """Run TARGET, time its stages, and compare the times with the roofline bound of a device.

    Each time is split into parts that add up to it: the floor (compulsory traffic or products), further traffic, the
    time of operators beyond their bound, and host time, on a GPU that in which the device is idle: Python, dispatch,
    launches and synchronisation. The host and device clocks of the run also predict its time. With --predict the
    prediction is the only result, and the model never runs. Runs on the CPU unless --run cuda is given, 5 times unless
    --profile N is given. On a GPU each stage is also timed as a CUDA graph, where it can be captured.

    The exit code is 1 if something ran faster than its bound, which the report then explains, and 3 if the cost of an
    operator is unknown or it cannot be run in isolation.
    """
    how = variant("measure", kind, output)
    check_apart(output)
    forms = ("eager", "graph", *(["compiled"] if compiled else []))
    with show_progress(progress) as say:
        found = api.measure(run, on=device, math=math, predict=predict, ways=forms, progress=say)
    emit(how.text(found, terminal_width(output)), output)
    for row in found.rows:
        if row.wrong:
            click.echo(f"{visible(row.run)} {visible(row.stage)}: {visible(row.wrong)}", err=True)
    for operator in found.operators:
        if operator.why:
            click.echo(
                visible(f"{operator.run} {operator.stage}: {operator.operator} could not be made: {operator.why}"),
                err=True,
            )
    return found.exit_code
