"""The folder that reports go to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from costproof.ledger.errors import BadInput
from costproof.ledger.files import first_bytes
from costproof.ledger.writing import places
from costproof.reports.outputs import OUTPUTS

_HEADER: Final = 100
"""Bytes that hold the schema of a file of ours."""


def check_report_folder(folder: Path) -> None:
    """:func:`check_folder`, and that no file of somebody else would be replaced.

    Raises:
        BadInput: as it does, or a JSON file there has the name of one of ours and is another.
    """
    check_folder(folder, (output.file for output in OUTPUTS if output.folder in ("report", "measured")))
    for output in OUTPUTS:
        path = folder / output.file
        if output.folder != "report" or output.kind is None or not path.is_file():
            continue
        with suppress(OSError):
            if b'"schema": "costproof/' not in first_bytes(path, _HEADER):
                raise BadInput(
                    "a file of this name is not ours",
                    where=str(path),
                    expected="a file that costproof wrote, or none",
                    fix="choose another folder with -o",
                )


def check_folder(folder: Path, files: Iterable[str] = ()) -> None:
    """Fail before minutes of work, not after.

    Args:
        files: names of what will be written there.

    Raises:
        BadInput: this is not a folder and cannot be made one, nothing can be written there, or a link leads out of it.
    """
    places(folder / file for file in files)
    for part in (folder, *folder.parents):
        if part.is_dir():
            if not os.access(part, os.W_OK):
                raise BadInput("the folder cannot be written", where=str(folder), fix="choose another folder with -o")
            return
        if part.exists() or part.is_symlink():
            raise BadInput(
                "the reports need a folder",
                where=str(folder),
                expected="a folder, or a path where one can be made",
                got=f"{part} is not a folder",
                fix="choose another folder with -o",
            )
