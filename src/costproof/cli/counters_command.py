"""``costproof counters``: third-party counters beside the truth, each difference explained."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import STAGE, TARGET, Whole, Words
from costproof.cli.options import format_option, of_run, options
from costproof.cli.output import check_apart, emit, screen
from costproof.cli.progress import progress as shown
from costproof.cli.target_command import TargetCommand
from costproof.reports.escape import visible
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option(
    "--stage", "stages", multiple=True, type=STAGE, metavar="NAME", help="Only this stage; may be given several times."
)
@click.option(
    "--add",
    "own",
    multiple=True,
    metavar="NUMBER|CSV",
    help="A number of your own, such as mine@STAGE=571.92G or mine@STAGE:CALL=571.92GMAC, or a CSV of them.",
)
@click.option(
    "--only", "counters", type=Words(offered=api.counter_names), help="Only these counters, separated by commas."
)
@click.option("--timeout", type=Whole(), default=600, show_default=True, metavar="SECONDS", help="For each counter.")
@click.option("--memory", type=Whole(), default=4, show_default=True, metavar="GIB", help="For each counter.")
@format_option("counters")
@options("output", "request", "dry-run", "config", "preset", "trust-remote-code", "rules", "progress")
@of_run
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

    The truth is our own count of the same forward, compared with the closed formulas. A counter that crashes is a row
    with its error; one that is not installed is skipped, unless --only names it. A number of your own is a row with
    its causes, as costproof check finds them; a CSV has the columns name, stage, value and, if you like, unit (flop or
    mac) and invocation.

    Exit code 1 if a difference stays unexplained, 3 if the truth or a counter failed.
    """
    how = variant("counters", kind, output)
    check_apart(output)
    with shown(progress) as say:
        found = api.counters(run, stages=stages, own=own, seconds=timeout, memory_gib=memory, progress=say)
    emit(
        how.text(found, screen(output)),
        output,
        inputs=[Path(o) for o in own if "=" not in o],
    )
    for why in found.compared.incomplete:
        click.echo(f"incomplete: {visible(why)}", err=True)
    return found.exit_code
