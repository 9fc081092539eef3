"""``costproof graph``: the callgraph of a capture, or of a target, as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.kinds import FILE, SIDE, Whole, Words
from costproof.cli.options import options
from costproof.cli.output import check_apart, check_no_picture, emit, wrote
from costproof.cli.progress import progress as shown
from costproof.ledger.errors import BadInput
from costproof.ledger.writing import places, write_texts
from costproof.reports.outputs import PICTURES


@click.command()
@click.argument("capture", metavar="CAPTURE|TARGET", type=SIDE)
@click.option(
    "-f",
    "--format",
    "kinds",
    type=Words(*PICTURES),
    default="svg",
    show_default=True,
    help="Of " + ", ".join(PICTURES) + "; png needs the extra [plot].",
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
@click.option(
    "--slide", is_flag=True, help="For a slide of 16:9 (svg, png): what can be read there, the heaviest first."
)
@options("trust-remote-code", "rules", "progress")
def graph(
    capture: str,
    kinds: tuple[str, ...],
    output: Path | None,
    trust_remote_code: bool,
    rules: tuple[Path, ...],
    progress: str,
    **choice: Any,
) -> int:
    """Draw the callgraph of CAPTURE, or a callgraph.json: modules in families, and how they repeat.

    A target with settings, as costproof diff takes it (hf:opt,seq-len=8, deepseek-ocr@tiny), is run on shapes first.

    "for 12" is twelve modules in series, "parfor 64" are modules side by side, or calls of one module. Solid
    arrows are calls, dashed ones data. An orange bar is the share of the FLOPs.
    """
    file = Path(capture)
    if output is None and len(kinds) > 1 and not file.exists():
        raise BadInput("several pictures of a target need a folder", where="costproof graph", fix="-o DIR")
    check_no_picture(output)
    beside = file if file.is_dir() else file.parent
    folder = beside if output is None else output
    alone = output is None and len(kinds) == 1
    files = {} if alone else {kind: folder / f"callgraph.{kind}" for kind in kinds}
    places(files.values())
    for path in files.values():
        check_apart(path)
    with shown(progress) as say:
        made = api.drawable(capture, say, rules=rules, trust_remote_code=trust_remote_code)
    texts = {kind: api.graph(made, kind, **choice) for kind in kinds}
    if alone:
        emit(texts[kinds[0]], None)
        return 0
    write_texts({path: texts[kind] for kind, path in files.items()})
    for path in files.values():
        wrote(path)
    return 0
