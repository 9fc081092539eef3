"""Define ``costproof plot``, which draws the contents of a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from costproof import api
from costproof.cli.options import device_option
from costproof.cli.output import check_apart, check_no_picture, note_written
from costproof.cli.params import FILE, ListParam
from costproof.ledger.errors import EXIT_OK
from costproof.ledger.writing import places, write_texts

_PICTURES: Final = ("shares", "roofline", "peaks", "counters", "sweep")


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
