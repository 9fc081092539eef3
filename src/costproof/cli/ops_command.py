"""``costproof ops``: operator rules, and what a capture has of them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import click

from costproof.cli.options import FILE


@click.command()
@click.option("--filter", "glob", default="*", metavar="GLOB", help="Only operators that match, such as '*attention*'.")
@click.option(
    "--capture", type=FILE, metavar="FILE", help="Show the operators of this capture and what no rule covers."
)
def ops(glob: str, capture: Path | None) -> int:
    """List the operator rules; with --capture, the operators of a run.

    Exit code 3 if the capture has an operator without a rule.
    """
    from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK

    if capture is None:
        from costproof.graph.rules import rule_table

        rows = [r for r in rule_table() if fnmatchcase(r.operator, glob)]
        width = max((len(r.operator) for r in rows), default=0)
        for rule in rows:
            click.echo(
                f"{rule.operator:<{width}}  {rule.summary}"
                + ("" if rule.owner.startswith("costproof.") else f" (from {rule.owner})")
            )
        click.echo(f"{len(rows)} operators")
        return EXIT_OK
    from costproof import api
    from costproof.reports.coverage import coverage_text

    made = api.read(capture)
    click.echo(coverage_text(made, glob), nl=False)
    return EXIT_INCOMPLETE if any(x.unknown_ops for x in made.ledgers) else EXIT_OK
