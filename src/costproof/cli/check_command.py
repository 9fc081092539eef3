"""``costproof check``: other people's numbers and formulas held against the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof.cli.options import FILE, format_option, workload_options


@click.command()
@click.argument("claims", type=FILE)
@click.argument("target")
@click.option(
    "--capture",
    type=FILE,
    metavar="FILE",
    help="Hold the claims against this capture, which has to be exact or explained, instead of the formulas alone.",
)
@format_option("claims")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
@workload_options
def check(
    claims: Path,
    target: str,
    capture: Path | None,
    kind: str | None,
    output: Path | None,
    config: Path | None,
    **settings: Any,
) -> int:
    """Hold the numbers and formulas in CLAIMS, a YAML file, against TARGET.

    Each claim is right, or is led to from the truth by named causes of exact size, or is refuted at every
    length, or its rest stays unexplained. Workload options go before what the file says. Needs no torch.

    The exit code is 0 if every claim is right or explained, else 1.
    """
    from costproof.cli.output import emit
    from costproof.ledger.errors import EXIT_FINDINGS, EXIT_OK
    from costproof.reports.outputs import variant
    from costproof.run.claims import check_claims

    found = check_claims(claims, target, capture=capture, config=config, settings=settings)
    emit(variant("claims", kind, output).text(found), output, inputs=(claims, capture, config))
    return EXIT_OK if found.verdict in ("right", "explained") else EXIT_FINDINGS
