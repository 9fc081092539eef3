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

if TYPE_CHECKING:
    from costproof.reports.report import Report


@click.command()
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
    """Count TARGET, compare the sources, write the folder of reports.

    Writes capture.json, static_compute.json and .md, discrepancy.json and .md, and callgraph.json, all or
    none of them; with --profile also what was measured, with --counters also counters.json and .md. Files of
    an earlier report in the folder are replaced.
    """
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
        paths = write_report(found, folder)
        say("write", 1, 1)
    for path in paths:
        wrote(path)
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
