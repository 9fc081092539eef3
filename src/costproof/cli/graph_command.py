"""``costproof graph``: the callgraph of a capture as pictures."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.cli.options import FILE, Whole


@click.command()
@click.argument("capture", type=FILE)
@click.option("-f", "--format", "kinds", default="svg", show_default=True, metavar="LIST", help="Of dot, svg, mmd.")
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the files; without it one goes to stdout.")
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
    from costproof.cli.options import listed
    from costproof.cli.output import check_apart, emit, wrote
    from costproof.ledger.capture import read_capture
    from costproof.ledger.errors import EXIT_OK, BadInput
    from costproof.reports.folder import write_texts
    from costproof.reports.graph.choice import Choice
    from costproof.reports.graph.view import graph_view
    from costproof.reports.graph.writers import writer

    wanted = list(dict.fromkeys(listed(kinds)))
    writers = {kind: writer(kind) for kind in wanted}
    if output is None and len(writers) != 1:
        raise BadInput(
            "only one format can go to stdout",
            where="-f",
            expected="one format, or a folder",
            got=", ".join(wanted) or "none",
            fix="name a folder with -o",
        )
    view = graph_view(read_capture(capture), Choice(depth, stage, prefix, heavy, link))
    texts = {kind: write(view) for kind, write in writers.items()}
    if output is None:
        emit(texts[wanted[0]], None)
        return EXIT_OK
    files = {output / f"callgraph.{kind}": text for kind, text in texts.items()}
    for path in files:
        check_apart(path, (capture,))
    write_texts(files)
    for path in files:
        wrote(path)
    return EXIT_OK
