"""Several files that belong together: written aside first, renamed when all are whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from errno import EISDIR
from pathlib import Path

from costproof.ledger.errors import BadInput


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write all files or, as far as a file system allows, none.

    Raises:
        BadInput: a folder cannot be made or written; nothing new is left behind.
    """
    aside: list[tuple[str, Path]] = []
    made: list[Path] = []
    path = Path()
    try:
        for path, content in texts.items():
            made += _make(path.parent)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            aside.append((name, path))
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
                out.write(content)
            if path.is_dir():
                raise IsADirectoryError(EISDIR, "Is a directory")
        mask = os.umask(0)
        os.umask(mask)
        for name, path in aside:
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
    except BaseException as error:
        for name, _ in aside:
            with suppress(OSError):
                os.unlink(name)
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()  # only if still empty
        if isinstance(error, OSError):
            raise BadInput(
                "cannot write a file",
                where=str(path),
                expected="a folder that can be written",
                got=error.strerror or type(error).__name__,
                fix="choose another place with -o",
            ) from error
        raise


def remove(files: Iterable[Path]) -> tuple[Path, ...]:
    """Remove files that are there; returns them. What cannot be removed stays."""
    gone: list[Path] = []
    for path in files:
        with suppress(OSError):
            path.unlink()
            gone.append(path)
    return tuple(gone)


def _make(folder: Path) -> list[Path]:
    """Make a folder with its parents; gives those that were not there, outermost first."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def check_folder(folder: Path) -> None:
    """Fail before minutes of work, not after.

    Raises:
        BadInput: this is no folder, nor can it be made one, or nothing can be written there.
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
                got=f"{part} is no folder",
                fix="choose another folder with -o",
            )
