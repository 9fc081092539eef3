"""``costproof report``: count, compare, write the folder, print the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costproof.cli.options import (
    FILE,
    all_calls_option,
    counters_option,
    listed,
    progress_option,
    remote_code_option,
    rules_option,
    sources_option,
    workload_options,
)
from costproof.cli.run_options import convention_option, profile_option, run_options
from costproof.reports.outputs import OUTPUTS

if TYPE_CHECKING:
    from costproof.reports.report import Report


@click.command(
    help="Count TARGET, compare the sources, write the folder of reports.\n\nWrites "
    + ", ".join(o.file for o in OUTPUTS if o.folder in ("report", "measured"))
    + ", as far as the run has data for them, all or none. Files that an earlier run left in the folder are replaced"
    " or removed."
)
@click.argument("target")
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the reports; out/TARGET unless given.")
@workload_options
@run_options
@profile_option
@sources_option
@convention_option
@all_calls_option
@counters_option
@remote_code_option
@rules_option
@progress_option
def report(
    target: str,
    output: Path | None,
    config: Path | None,
    sources: str,
    counters: str | None,
    progress: str,
    **settings: Any,
) -> int:
    from costproof import api
    from costproof.cli.output import wrote
    from costproof.cli.progress import progress as shown
    from costproof.reports.folder import check_folder
    from costproof.reports.report import write_report

    # A snapshot is named by its folder, and the reports must not land in it.
    folder = output if output is not None else Path("out") / (Path(target).name if Path(target).is_dir() else target)
    check_folder(folder)
    with shown(progress) as say:
        others = None if counters is None else listed(counters)
        found = api.report(target, config=config, sources=listed(sources), counters=others, progress=say, **settings)
        say("write", 0, 1)
        written = write_report(found, folder)
        say("write", 1, 1)
    for path in written.files:
        wrote(path)
    for path in written.removed:
        click.echo(f"Removed {path}, which an earlier run left", err=True)
    print_summary(found)
    click.echo(f"Reports: {folder}/")
    return found.exit_code


def print_summary(found: Report) -> None:
    """The table, as wide and as colourful as stdout allows."""
    import sys

    if not sys.stdout.isatty():
        click.echo(found.render("summary"), nl=False)
        return
    from rich.console import Console

    from costproof.reports.summary import print_summary as typeset
    from costproof.reports.summary import summary

    typeset(Console(highlight=False, emoji=False), summary(found))
