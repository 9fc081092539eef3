"""``costproof check``: published numbers and formulas checked against a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.kinds import FILE, TARGET
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, on_screen
from costproof.cli.progress import progress as shown
from costproof.cli.target_command import TargetCommand
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("claims", type=FILE)
@click.argument("target", required=False, type=TARGET)
@click.option(
    "--capture",
    type=FILE,
    metavar="FILE",
    help="Check against this capture, which has to be exact or explained, instead of the formulas alone.",
)
@format_option("claims", table=True)
@options("output", "config", "preset", "trust-remote-code", "rules", "progress")
def check(
    claims: Path,
    target: str | None,
    capture: Path | None,
    kind: str | None,
    output: Path | None,
    progress: str,
    **choices: Any,
) -> int:
    """Check the numbers and formulas in CLAIMS, a YAML file, against TARGET.

    Each claim is right, or is led to from the truth by named causes of exact size, or is refuted at every
    length, or its rest stays unexplained. The file may name TARGET; workload options go before what it says.
    Needs no torch, but for claims on peaks of memory without a capture that has them, and for a TARGET without
    formulas, of which the exported graph is the truth.

    The exit code is 0 if every claim is right or explained, 3 if one is about bytes of a quantised checkpoint, else 1.
    """
    how = None if on_screen(kind, output) else variant("claims", kind, output)
    with shown(progress) as say:
        found = api.check(claims, target, capture=capture, progress=say, **choices)
    if how is None:
        from rich.console import Console

        from costproof.reports.claims import document
        from costproof.reports.text import TerminalPrinter

        TerminalPrinter(Console(highlight=False, emoji=False)).document(document(found, "text"))
    else:
        emit(how.text(found), output)
    return found.exit_code
