"""``costproof explain``: formula, derivation, numbers put in, result, matching graph nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.kinds import FILE, STAGE, TARGET, Name
from costproof.cli.options import asked, format_option, options
from costproof.cli.output import emit, note
from costproof.cli.target_command import TargetCommand
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.reports.listing_text import listing_text
from costproof.reports.outputs import variant
from costproof.reports.quantities import EXPLAINED


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.argument("stage", type=STAGE)
@click.option("--module", metavar="GLOB", help="Only modules whose path matches, such as '*mlp*'.")
@click.option(
    "--metric",
    type=Name(lambda target: EXPLAINED),
    default="flops",
    show_default=True,
    metavar="NAME",
    help="The quantity to explain: flops, vector_flops, params, calls, output_bytes, ...",
)
@click.option(
    "--capture",
    type=FILE,
    metavar="FILE",
    help="Show the graph nodes of this capture; out/TARGET/capture.json if it is there and fits.",
)
@click.option(
    "--graph", "listed", is_flag=True, help="List the operators of the exported stage instead, each with its cost."
)
@format_option("explain")
@options("output", "config", "preset", "trust-remote-code")
def explain(
    target: str,
    stage: str,
    module: str | None,
    metric: str,
    capture: Path | None,
    listed: bool,
    kind: str | None,
    output: Path | None,
    **choices: Any,
) -> int:
    """Break down the cost of STAGE of TARGET by formula; STAGE may be total.

    For each formula: the modules it stands for, the expression, the numbers put in, the result, what the graph
    sources have there, and at the end the derivation with its source. Needs no torch; with --graph it does.
    """
    if listed:
        if capture is not None or kind not in (None, "text"):
            raise BadInput("a listing is text, of an export", where="--graph", fix="leave out --capture and -f")
        emit(listing_text(api.operators(asked(target, None, choices), stage, module=module)), output)
        return 0
    graph = api.read(capture) if capture is not None else _usual(target)
    if capture is not None and graph is not None and not any(choices.values()):
        # A capture holds its own formulas and workload: explain the run that was captured.
        found = api.explain(graph, stage, module=module, metric=metric)
    else:
        found = api.explain(asked(target, None, choices), stage, module=module, metric=metric, graph=graph)
    emit(variant("explain", kind, output).text(found), output)
    return 0


def _usual(target: str) -> Capture | None:
    """The capture of the last report, if there is a usable one; it only adds to the answer."""
    path = Path("out") / Path(target).name
    try:
        return api.read(path) if (path / "capture.json").is_file() else None
    except BadInput as error:
        note(f"{path} is not used: {error.what}")
        return None
