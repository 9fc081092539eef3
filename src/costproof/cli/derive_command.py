"""Define ``costproof derive``, which derives closed formulas from a model's graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from costproof import api
from costproof.cli.options import options, run_command
from costproof.cli.output import check_apart, emit, print_note
from costproof.cli.params import STAGE, TARGET, ChoiceParam, IntParam

if TYPE_CHECKING:
    from costproof.compare.proof.closed_form import Form


@click.command()
@click.argument("target", required=False, type=TARGET)
@click.argument("stage", required=False, type=STAGE)
@click.option(
    "-f",
    "--format",
    "form",
    type=ChoiceParam("text", "latex", "python", "yaml"),
    default="text",
    show_default=True,
    help="Notation of the formulas.",
)
@click.option("--points", type=IntParam(), metavar="N", help="Random sizes to check at.  [default: 5]")
@options("request", "dry-run", "config", "trust-remote-code", "rules", "no-cache", "output")
@run_command
def derive(run: api.RunRequest, form: str, output: Path | None) -> int:
    """Derive the closed formulas of STAGE of TARGET from its graph.

    TARGET is a name, or the address of a model: hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE, FILE.py:FUNCTION or
    package.module:FUNCTION. STAGE is required if there are several. The formulas are checked against new counts at
    random sizes.
    """
    check_apart(output)
    found = api.derive(run)
    emit(found.text(cast("Form", form)), output)
    for p in found.wrong:
        sizes = ", ".join(f"{k} = {v}" for k, v in p.sizes.items())
        click.echo(
            f"differs at {sizes}: {p.derived:,} derived, {p.counted:,} counted in {', '.join(p.differing)}", err=True
        )
    total = len(found.points)
    print_note(f"checked: equal to a fresh count at {total - len(found.wrong)} of {total} points")
    return found.exit_code
