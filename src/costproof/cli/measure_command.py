"""``costproof measure``: a run timed stage by stage, beside its bounds."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import DEVICE, TARGET
from costproof.cli.options import format_option, of_run, options
from costproof.cli.output import check_apart, emit, screen
from costproof.cli.progress import progress as shown
from costproof.cli.target_command import TargetCommand
from costproof.reports.escape import visible
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option(
    "--on",
    "device",
    type=DEVICE,
    metavar="DEVICE|FILE",
    help="The device that it runs on; this machine is measured first unless given.",
)
@click.option("--math", metavar="DTYPE", help="Whose peak is the roof, such as tf32; the run's dtype unless given.")
@click.option(
    "--predict", is_flag=True, help="Run nothing but each distinct operator, alone; no memory has to hold the model."
)
@format_option("measure")
@options("output", "request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "profile")
@options("trust-remote-code", "rules", "progress")
@of_run
def measure(
    run: api.RunRequest,
    device: str | None,
    math: str | None,
    predict: bool,
    kind: str | None,
    output: Path | None,
    progress: str,
) -> int:
    """Run TARGET, time its stages, and hold the times against the roof of a device.

    Each time is split into parts that add up to it: the floor, the traffic beyond it, what each operator takes beyond
    the roof when it is made alone, and what lies between the operators. The sum of the operators alone is a prediction
    too: with --predict the only one, of a model that never runs. Runs on the processor unless --run cuda; --profile N
    says how often it is timed (5).

    The exit code is 1 where something ran faster than it can: the report says what is wrong then. It is 3 where
    something that runs has no known cost, or could not be made alone.
    """
    how = variant("measure", kind, output)
    check_apart(output)
    with shown(progress) as say:
        found = api.measure(run, on=device, math=math, predict=predict, progress=say)
    emit(how.text(found, screen(output)), output)
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
