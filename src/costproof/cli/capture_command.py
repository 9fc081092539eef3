"""Define ``costproof capture``, which counts a target and writes only the capture file."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.options import options, run_command
from costproof.cli.output import check_apart, emit
from costproof.cli.params import FILE, TARGET, ChoiceParam
from costproof.cli.progress import show_progress
from costproof.cli.target_command import TargetCommand
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK, BadInput
from costproof.ledger.node import rule_wanted, unknown_clause
from costproof.ledger.writing import written_in_place
from costproof.reports.escape import visible
from costproof.reports.report import check_folder


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="File to write; - for stdout.")
@click.option(
    "-f",
    "--format",
    "kind",
    type=ChoiceParam("capture", "baseline"),
    default="capture",
    show_default=True,
    help="baseline: summed by role and metric, small enough to commit.",
)
@options("request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "sources")
@options("convention", "all-calls", "peaks", "trust-remote-code", "rules", "no-cache", "progress")
@run_command
def capture(run: api.RunRequest, output: Path | None, kind: str, progress: str) -> int:
    """Count TARGET and write the capture file.

    The capture contains all ledgers, the callgraph, the conventions and the versions of one run. It can be compared and
    rendered without torch, on any machine. Exit code 3 if an operator has no cost rule or a source failed.
    """
    if output is None:
        raise BadInput("missing option '-o'", where="costproof capture", fix="-o FILE, or -o - for stdout")
    check_apart(output)
    if str(output) != "-" and not written_in_place(output):
        check_folder(output.parent)
    with show_progress(progress) as say:
        made = api.capture(run, progress=say)
    emit(api.render(made, "baseline" if kind == "baseline" else "capture-json"), output)
    unknown = [op for ledger in made.ledgers for op in ledger.unknown_ops]
    for op in unknown:
        click.echo(f"no cost rule for {op.op} ({unknown_clause([op])}): {op.why}", err=True)
    wanted = rule_wanted(unknown)
    if wanted:
        click.echo(wanted, err=True)
    for why in made.failed:
        click.echo(f"incomplete: {visible(why)}", err=True)
    return EXIT_INCOMPLETE if unknown or made.failed else EXIT_OK
