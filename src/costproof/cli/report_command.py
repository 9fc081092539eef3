"""Define ``costproof report``, which counts, compares, writes the folder and prints the table."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.options import options, run_command
from costproof.cli.output import note_written, print_note, print_summary
from costproof.cli.params import FILE, TARGET
from costproof.cli.progress import show_progress
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
    + ", each if the run has data for it, and either all of them or none. Files of an earlier run in the folder are"
    " replaced or removed.",
)
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the reports.  [default: out/TARGET]")
@options("request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "profile", "sources")
@options("convention", "all-calls", "peaks", "counters", "trust-remote-code", "rules", "no-cache", "progress")
@run_command
def report(run: api.RunRequest, output: Path | None, progress: str) -> int:
    # A snapshot is named by its folder, and the reports must not land in it.
    folder = output if output is not None else Path("out") / run.label
    check_report_folder(folder)
    source = run.source(folder)
    if output is None:
        check_source(folder, source)
    with show_progress(progress) as say:
        found = api.report(run, progress=say)
        written = write_report(found, folder, say, source=source)
    for path in written.files:
        note_written(path)
    for path in written.removed:
        print_note(f"Removed {path}, which an earlier run left")
    print_summary(found)
    for why in (*found.capture.failed, *(found.discrepancy.counters.incomplete if found.discrepancy.counters else ())):
        click.echo(f"incomplete: {visible(why)}", err=True)
    click.echo(f"Reports: {folder}/")
    return found.exit_code
