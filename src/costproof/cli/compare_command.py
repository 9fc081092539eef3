"""``costproof compare``: the comparison of a capture's sources."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.cli.options import FILE, format_option


@click.command()
@click.argument("capture", type=FILE)
@format_option("discrepancy")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
def compare(capture: Path, kind: str | None, output: Path | None) -> int:
    """Compare the sources of CAPTURE, a file that capture or report wrote.

    The exit code is the verdict: 0 all exact or explained, 1 findings, 3 incomplete.
    """
    from costproof import api
    from costproof.cli.output import emit
    from costproof.reports.outputs import variant

    found = api.compare(capture)
    emit(found.render(variant("discrepancy", kind, output).name), output, inputs=(capture,))
    return found.exit_code
