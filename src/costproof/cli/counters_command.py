"""Define ``costproof counters``, which runs third-party counters and explains their differences."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.options import format_option, options, run_command
from costproof.cli.output import check_apart, emit, terminal_width
from costproof.cli.params import STAGE, TARGET, IntParam, ListParam
from costproof.cli.progress import show_progress
from costproof.cli.target_command import TargetCommand
from costproof.reports.escape import visible
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option("--stage", "stages", multiple=True, type=STAGE, metavar="NAME", help="Only this stage; may be repeated.")
@click.option(
    "--add",
    "own",
    multiple=True,
    metavar="NUMBER|CSV",
    help="Add your own number, such as mine@STAGE=571.92G or mine@STAGE:CALL=571.92GMAC, or a CSV of them.",
)
@click.option(
    "--only", "counters", type=ListParam(offered=api.counter_names), help="Only these counters, separated by commas."
)
@click.option(
    "--timeout", type=IntParam(), default=600, show_default=True, metavar="SECONDS", help="Time limit per counter."
)
@click.option(
    "--memory", type=IntParam(), default=4, show_default=True, metavar="GIB", help="Memory limit per counter."
)
@format_option("counters")
@options("output", "request", "dry-run", "config", "preset", "trust-remote-code", "rules", "progress")
@run_command
def counters(
    run: api.RunRequest,
    stages: tuple[str, ...],
    own: tuple[str, ...],
    timeout: int,
    memory: int,
    kind: str | None,
    output: Path | None,
    progress: str,
) -> int:
    """Run third-party FLOP counters on TARGET and explain the differences.

    The reference is our own count of the same forward, checked against the closed formulas. A counter that crashes gets
    a row with its error; one that is not installed is skipped unless --only names it. Your own number gets a row with
    its causes, as in costproof check; a CSV has the columns name, stage, value and, optionally, unit (flop or mac) and
    invocation.

    Exit code 1 if a difference is unexplained, 3 if the reference or a counter failed.
    """
    how = variant("counters", kind, output)
    check_apart(output)
    with show_progress(progress) as say:
        found = api.counters(run, stages=stages, own=own, seconds=timeout, memory_gib=memory, progress=say)
    emit(how.text(found, terminal_width(output)), output, inputs=[Path(o) for o in own if "=" not in o])
    for why in found.compared.incomplete:
        click.echo(f"incomplete: {visible(why)}", err=True)
    return found.exit_code
