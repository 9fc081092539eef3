"""Define ``costproof check``, which checks published numbers and formulas against a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, shown_on_terminal
from costproof.cli.params import FILE, TARGET
from costproof.cli.progress import show_progress
from costproof.cli.target_command import TargetCommand
from costproof.reports.outputs import variant


@click.command(cls=TargetCommand)
@click.argument("claims", type=FILE)
@click.argument("target", required=False, type=TARGET)
@click.option(
    "--capture",
    type=FILE,
    metavar="FILE",
    help="Check against this capture, which must be exact or explained, instead of the formulas.",
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

    Each claim is right, explained by named causes of exact size, refuted at every length, or left with an unexplained
    rest. The file may name TARGET; workload options override those in the file. Torch is needed only for claims about
    memory peaks without a capture that has them, and for a TARGET without formulas, whose exported graph is the truth.

    The exit code is 0 if every claim is right or explained, 3 if one is about bytes of a quantised checkpoint, else 1.
    """
    how = None if shown_on_terminal(kind, output) else variant("claims", kind, output)
    with show_progress(progress) as say:
        found = api.check(claims, target, capture=capture, progress=say, **choices)
    if how is None:
        from rich.console import Console

        from costproof.reports.claims import document
        from costproof.reports.text import TerminalPrinter

        TerminalPrinter(Console(highlight=False, emoji=False)).document(document(found, "text"))
    else:
        emit(how.text(found), output)
    return found.exit_code
