"""``costproof graph``: the callgraph of a capture as pictures."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.cli.options import FILE, Choices, Whole, listed
from costproof.reports.outputs import variants


@click.command()
@click.argument("capture", type=FILE)
@click.option(
    "-f",
    "--format",
    "kinds",
    type=Choices(*variants("graph")),
    default="svg",
    show_default=True,
    help="Of " + ", ".join(variants("graph")) + ".",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="DIR",
    help="Folder for the files. Without it one format goes to stdout, several go beside CAPTURE.",
)
@click.option(
    "--depth", type=Whole(), metavar="N", help="Calls below the outermost modules; what fits on a page if not given."
)
@click.option("--stage", metavar="STAGE", help="Only modules that work in this stage, with its costs.")
@click.option("--prefix", metavar="PATH", help="Only this module and what is inside it.")
@click.option("--heavy", is_flag=True, help="Only modules with matmul-like work, and those that lead to them.")
@click.option("--link", metavar="URL", help="Where a click leads (dot, svg); {path} and {class} are filled in.")
def graph(
    capture: Path,
    kinds: str,
    output: Path | None,
    depth: int | None,
    stage: str | None,
    prefix: str | None,
    heavy: bool,
    link: str | None,
) -> int:
    """Draw the callgraph of CAPTURE: modules in families, and how they repeat.

    "for 12" is twelve modules in series, "parfor 64" are modules side by side, or calls of one module. Solid
    arrows are calls, dashed ones data.
    """
    from costproof.cli.output import check_apart, emit, wrote
    from costproof.ledger.capture import read_capture
    from costproof.ledger.errors import EXIT_OK
    from costproof.reports.folder import write_texts
    from costproof.reports.graph.choice import Choice
    from costproof.reports.graph.view import graph_view

    known = variants("graph")
    wanted = listed(kinds)
    view = graph_view(read_capture(capture), Choice(depth, stage, prefix, heavy, link))
    if output is None and len(wanted) == 1:
        emit(known[wanted[0]].text(view), None)
        return EXIT_OK
    folder = capture.parent if output is None else output
    files = {folder / known[kind].file: known[kind].text(view) for kind in wanted}
    for path in files:
        check_apart(path, (capture,))
    write_texts(files)
    for path in files:
        wrote(path)
    return EXIT_OK
