"""``costproof ops``: operator rules, and what a capture has of them."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import FILE
from costproof.cli.output import emit, rows, screen
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.plural import plural
from costproof.reports.coverage import coverage_text


@click.command()
@click.option("--filter", "glob", default="*", metavar="GLOB", help="Only operators that match, such as '*attention*'.")
@click.option(
    "--capture", type=FILE, metavar="FILE", help="Show the operators of this capture and what has no cost rule."
)
def ops(glob: str, capture: Path | None) -> int:
    """List the operator rules; with --capture, the operators of a run.

    Exit code 3 if the capture has an operator without a cost rule.
    """
    if capture is None:
        known = api.ops(glob)
        owners = ("" if r.owner.startswith("costproof.") else f" (from {r.owner})" for r in known)
        named = [(r.operator, r.summary + o) for r, o in zip(known, owners, strict=True)]
        emit(rows(named, screen()) + f"{plural(len(known), 'operator')}\n", None)
        return EXIT_OK
    made = api.read(capture)
    emit(coverage_text(made, glob, screen()), None)
    return EXIT_INCOMPLETE if any(x.unknown_ops for x in made.ledgers) else EXIT_OK
