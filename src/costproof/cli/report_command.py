"""``costproof report``: count, compare, write the folder, print the table."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import FILE, TARGET
from costproof.cli.options import of_run, options
from costproof.cli.output import note, print_summary, wrote
from costproof.cli.progress import progress as shown
from costproof.cli.target_command import TargetCommand
from costproof.reports.escape import visible
from costproof.reports.outputs import OUTPUTS
from costproof.reports.report import check_report_folder, write_report
from costproof.views.manifest import check_source


@click.command(
    cls=TargetCommand,
    help="Count TARGET, compare the sources, write the folder of reports.\n\nTARGET is a name (costproof targets), the"
    " folder of a snapshot, or the address of any model: hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE, FILE.py:FUNCTION,"
    " package.module:FUNCTION.\n\nWrites "
    + ", ".join(o.file for o in OUTPUTS if o.folder in ("report", "measured"))
    + ", as far as the run has data for them, all or none. Files that an earlier run left in the folder are replaced"
    " or removed.",
)
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the reports; out/TARGET unless given.")
@options("request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "profile", "sources")
@options("convention", "all-calls", "peaks", "counters", "trust-remote-code", "rules", "no-cache", "progress")
@of_run
def report(run: api.RunRequest, output: Path | None, progress: str) -> int:
    # A snapshot is named by its folder, and the reports must not land in it.
    folder = output if output is not None else Path("out") / run.label
    check_report_folder(folder)
    source = run.source(folder)
    if output is None:
        check_source(folder, source)
    with shown(progress) as say:
        found = api.report(run, progress=say)
        written = write_report(found, folder, say, source=source)
    for path in written.files:
        wrote(path)
    for path in written.removed:
        note(f"Removed {path}, which an earlier run left")
    print_summary(found)
    for why in (*found.capture.failed, *(found.discrepancy.counters.incomplete if found.discrepancy.counters else ())):
        click.echo(f"incomplete: {visible(why)}", err=True)
    click.echo(f"Reports: {folder}/")
    return found.exit_code
