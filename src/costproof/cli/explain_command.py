"""``costproof explain``: formula, derivation, numbers put in, result, matching graph nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costproof.cli.options import FILE, format_option, workload_options

if TYPE_CHECKING:
    from costproof.ledger.capture import Capture


@click.command()
@click.argument("target")
@click.argument("stage")
@click.option("--module", metavar="GLOB", help="Only modules whose path matches, such as '*mlp*'.")
@click.option(
    "--metric",
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
@format_option("explain")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
@workload_options
def explain(
    target: str,
    stage: str,
    module: str | None,
    metric: str,
    capture: Path | None,
    kind: str | None,
    output: Path | None,
    config: Path | None,
    **settings: Any,
) -> int:
    """Take the cost of STAGE of TARGET apart, formula by formula.

    For each formula: the modules it stands for, the expression, the numbers put in, the result, what the graph
    sources have there, and at the end the derivation with its source. Needs no torch.
    """
    from costproof import api
    from costproof.cli.output import emit
    from costproof.ledger.errors import EXIT_OK
    from costproof.reports.outputs import variant

    graph = api.read(capture) if capture is not None else _usual(target)
    if (
        capture is not None
        and graph is not None
        and config is None
        and not any(v is not None for v in settings.values())
    ):
        # A capture holds its own formulas and workload: explain the run that was captured.
        from costproof.reports.explain import explain as explained

        found = explained(graph, stage, module=module, metric=metric, graph=graph)
    else:
        found = api.explain(target, stage, module=module, metric=metric, graph=graph, config=config, **settings)
    emit(variant("explain", kind, output).text(found), output, inputs=(capture, config))
    return EXIT_OK


def _usual(target: str) -> Capture | None:
    """The capture of the last report, if there is a usable one; it only adds to the answer."""
    from costproof import api
    from costproof.ledger.errors import BadInput

    path = Path("out") / target / "capture.json"
    try:
        return api.read(path) if path.is_file() else None
    except BadInput as error:
        click.echo(f"{path} is not used: {error.what}", err=True)
        return None
