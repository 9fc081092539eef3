"""The folder that reports go to."""

from __future__ import annotations

import os
from pathlib import Path

from costproof.ledger.errors import BadInput


def check_folder(folder: Path) -> None:
    """Fail before minutes of work, not after.

    Raises:
        BadInput: this is not a folder and cannot be made one, or nothing can be written there.
    """
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
