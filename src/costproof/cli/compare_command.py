"""``costproof compare``: the comparison of a capture's sources."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.kinds import FILE
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, on_screen, print_summary
from costproof.ledger.errors import BadInput
from costproof.reports.outputs import variant


@click.command()
@click.argument("captures", nargs=-1, required=True, type=FILE, metavar="CAPTURE")
@format_option("discrepancy")
@options("output")
def compare(captures: tuple[Path, ...], kind: str | None, output: Path | None) -> int:
    """Compare the sources of CAPTURE: a file that capture or report wrote, or the folder of a report.

    On a terminal it prints the table and what is open; elsewhere, and with -f md, everything.
    The exit code is the verdict: 0 all exact or explained, 1 findings, 3 incomplete.
    """
    if len(captures) > 1:
        raise BadInput(
            "one capture is compared at a time: its sources with each other",
            where="costproof compare",
            expected="CAPTURE",
            got=" ".join(map(str, captures))[:80],
            fix=f"costproof compare {captures[0]}",
        )
    found = api.compare(captures[0])
    if on_screen(kind, output):
        print_summary(found)
    else:
        emit(found.render(variant("discrepancy", kind, output).name), output)
    return found.exit_code
