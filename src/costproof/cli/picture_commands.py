"""Define the commands that draw: ``graph`` and ``plot``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from costproof import api
from costproof.cli.options import device_option, options
from costproof.cli.output import check_apart, check_no_picture, emit, note_written
from costproof.cli.params import FILE, OPERAND, IntParam, ListParam
from costproof.cli.progress import show_progress
from costproof.ledger.errors import EXIT_OK, BadInput
from costproof.ledger.writing import places, write_texts
from costproof.reports.outputs import PICTURES

_PICTURES: Final = ("shares", "roofline", "peaks", "counters", "sweep")


@click.command()
@click.argument("capture", metavar="CAPTURE|TARGET", type=OPERAND)
@click.option(
    "-f",
    "--format",
    "kinds",
    type=ListParam(*PICTURES),
    default="svg",
    show_default=True,
    help="Image formats: " + ", ".join(PICTURES) + "; png needs the extra [plot].",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="DIR",
    help="Folder for the files.  [default: stdout for one format, the folder of CAPTURE for several]",
)
@click.option(
    "--depth",
    type=IntParam(),
    metavar="N",
    help="Levels of calls below the outermost modules.  [default: as many as fit on a page]",
)
@click.option("--stage", metavar="STAGE", help="Show only modules that work in this stage, with its costs.")
@click.option("--prefix", metavar="PATH", help="Show only this module and its submodules.")
@click.option("--heavy", is_flag=True, help="Show only modules with matmul-like work, and their ancestors.")
@click.option("--link", metavar="URL", help="Target of a click (dot, svg), with {path} and {class} of the module.")
@click.option(
    "--slide",
    is_flag=True,
    help="Draw for a 16:9 slide (svg, png): as many modules as are legible, the heaviest first.",
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
    """Draw the callgraph of CAPTURE or of a callgraph.json, with equal modules grouped.

    A target with settings, as in costproof diff (hf:opt,seq-len=8, deepseek-ocr@tiny), is run on the meta device first.

    "for 12" marks twelve modules in series, "parfor 64" parallel modules or calls of one module. Solid arrows are
    calls, dashed ones data. An orange bar is the share of the FLOPs.
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
    with show_progress(progress) as say:
        made = api.drawable(capture, say, rules=rules, trust_remote_code=trust_remote_code)
    texts = {kind: api.graph(made, kind, **choice) for kind in kinds}
    if alone:
        emit(texts[kinds[0]], None)
        return 0
    write_texts({path: texts[kind] for kind, path in files.items()})
    for path in files.values():
        note_written(path)
    return 0


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "-f", "--format", "kinds", type=ListParam("svg", "png", metavar="svg,png"), default="svg", show_default=True,
    help="Image formats.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=FILE, metavar="DIR", help="Folder for the pictures.  [default: the folder of FILE]"
)
@click.option(
    "--only", type=ListParam(offered=lambda: _PICTURES), default="", metavar="LIST",
    help=f"Pictures to draw: {', '.join(_PICTURES)}.  [default: all that FILE has data for]",
)  # fmt: skip
@device_option("Also draw the roofline of a capture on this device")
def plot(file: Path, kinds: tuple[str, ...], output: Path | None, only: tuple[str, ...], device: str | None) -> int:
    """Draw the contents of FILE.

    FILE is a capture or the folder of a report (the share of each stage; peaks and third-party counters if present), a
    sweep (.json or .csv: a metric over the varied setting), or the JSON file of roofline, peaks or counters. A capture
    gives a file for each picture (shares.svg and so on), another FILE one picture of the same name. Needs the extra
    [plot].
    """
    check_no_picture(output)
    folder = output or (file if file.is_dir() else file.parent)

    def check(names: Iterable[str]) -> None:
        for path in places(folder / name for name in names):
            check_apart(path)

    files = {
        folder / name: made for name, made in api.plot(file, kinds, only=only, on=device, named_first=check).items()
    }
    write_texts(files)
    for path in files:
        note_written(path)
    return EXIT_OK
