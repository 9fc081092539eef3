"""``costproof plot``: pictures of what a file holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from costproof import api
from costproof.cli.kinds import DEVICE, FILE, Words
from costproof.cli.output import check_apart, check_no_picture, wrote
from costproof.ledger.errors import EXIT_OK
from costproof.ledger.writing import places, write_texts

_PICTURES: Final = ("shares", "roofline", "peaks", "counters", "sweep")


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "-f", "--format", "kinds", type=Words("svg", "png", metavar="svg,png"), default="svg", show_default=True,
    help="Of the pictures.",
)  # fmt: skip
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the pictures; that of FILE unless given.")
@click.option(
    "--only", type=Words(offered=lambda: _PICTURES), default="", metavar="LIST",
    help=f"Of {', '.join(_PICTURES)}; all that FILE has data for unless given.",
)  # fmt: skip
@click.option("--on", type=DEVICE, metavar="DEVICE|FILE", help="Draw the roofline of a capture too, on this device.")
def plot(file: Path, kinds: tuple[str, ...], output: Path | None, only: tuple[str, ...], on: str | None) -> int:
    """Draw what FILE holds.

    FILE is a capture or the folder of a report (the share of each stage; peaks and third-party counters, where they
    were asked for), a sweep (.json or .csv: a metric over what varies), or the JSON file of roofline, peaks or
    counters. A capture has a file for each picture, shares.svg and so on; the others
    have one of their own name. Needs the extra [plot].
    """
    check_no_picture(output)
    folder = output or (file if file.is_dir() else file.parent)

    def check(names: Iterable[str]) -> None:
        for path in places(folder / name for name in names):
            check_apart(path)

    files = {folder / name: made for name, made in api.plot(file, kinds, only=only, on=on, named_first=check).items()}
    write_texts(files)
    for path in files:
        wrote(path)
    return EXIT_OK
