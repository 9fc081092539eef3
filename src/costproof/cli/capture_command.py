"""``costproof capture``: count and write the capture file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof.cli.options import (
    FILE,
    all_calls_option,
    listed,
    progress_option,
    remote_code_option,
    rules_option,
    sources_option,
    workload_options,
)
from costproof.cli.run_options import convention_option, run_options


@click.command()
@click.argument("target")
@click.option("-o", "--output", type=FILE, required=True, metavar="FILE", help="The file to write; - for stdout.")
@workload_options
@run_options
@sources_option
@convention_option
@all_calls_option
@remote_code_option
@rules_option
@progress_option
def capture(target: str, output: Path, config: Path | None, sources: str, progress: str, **settings: Any) -> int:
    """Count TARGET and write the capture file.

    The capture holds all ledgers, the callgraph, the conventions and the versions of one run. It is compared
    and rendered without torch, on any machine. Exit code 3 if an operator has no rule.
    """
    from costproof import api
    from costproof.cli.output import check_apart, emit
    from costproof.cli.progress import progress as shown
    from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK
    from costproof.ledger.node import rule_wanted, unknown_clause
    from costproof.reports.folder import check_folder
    from costproof.reports.report import Report

    if str(output) != "-":
        check_apart(output, (config, settings.get("image")))
        check_folder(output.parent)
    with shown(progress) as say:
        made = api.capture(target, config=config, sources=listed(sources), progress=say, **settings)
    emit(Report(made).render("capture-json"), output)
    unknown = [op for ledger in made.ledgers for op in ledger.unknown_ops]
    for op in unknown:
        click.echo(f"no rule for {op.op} ({unknown_clause([op])}): {op.why}", err=True)
    wanted = rule_wanted(unknown)
    if wanted:
        click.echo(wanted, err=True)
    return EXIT_INCOMPLETE if unknown else EXIT_OK
