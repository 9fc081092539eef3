"""Define ``costproof compare``, which compares the sources of a capture."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from costproof import api
from costproof.cli.options import options
from costproof.cli.output import emit, print_summary, shown_on_terminal, terminal_width
from costproof.cli.params import FILE, ChoiceParam
from costproof.ledger.errors import BadInput
from costproof.reports.outputs import check_ending, variants

_FORMATS: Final = {
    "text": "summary",
    "modules": "modules",
    **{kind: output.name for kind, output in variants("discrepancy").items()},
}
"""Format of the command -> output."""


@click.command()
@click.argument("captures", nargs=-1, required=True, type=FILE, metavar="CAPTURE")
@click.option(
    "-f", "--format", "kind", type=ChoiceParam(*_FORMATS),
    help="text: the table and open findings; modules: a row per module; md, json: everything; short: for a comment."
    "  [default: by the suffix of -o, else text]",
)  # fmt: skip
@options("output")
def compare(captures: tuple[Path, ...], kind: str | None, output: Path | None) -> int:
    """Compare the sources of CAPTURE: a file that capture or report wrote, or the folder of a report.

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
    if kind is None and output is not None and output.suffix:
        check_ending(output, (".txt", ".md", ".json"))
    found = api.compare(captures[0])
    if shown_on_terminal(kind, output):
        print_summary(found)
    else:
        ending = output.suffix.removeprefix(".") if output is not None else ""
        emit(found.render(_FORMATS.get(kind or ending, _FORMATS["text"]), terminal_width(output)), output)
    return found.exit_code
