"""Hash the files of a report folder, so that files of two runs are never mixed.

A file system replaces one file at a time. A run that is killed between two of them leaves files of two runs side by
side; then some of them are not what the manifest says, and whoever reads the folder refuses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costproof.ledger.errors import BadInput
from costproof.ledger.schema import FileKind, load

_AGAIN: Final = "costproof report TARGET -o DIR"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that one report wrote into its folder, with their hashes."""

    files: dict[str, str]
    """SHA-256 of each file in hex digits, by file name."""
    source: str = ""
    """Address of the target, with paths relative to this folder; empty for a module object, or if unknown."""


MANIFEST: Final = FileKind(name="costproof/manifest", version=(1, 1), type=Manifest)
NAME: Final = "manifest.json"
_MOST_BYTES: Final = 2**30
"""Maximum total size of the hashed files; a report has a few million bytes."""


def manifest(texts: Mapping[Path, str], source: str = "") -> Manifest:
    """Return the manifest of files that will be written."""
    return Manifest({p.name: hashlib.sha256(text.encode()).hexdigest() for p, text in texts.items()}, source)


def check_source(folder: Path, source: str) -> None:
    """Check that a report's default folder does not contain the report of another target of the same name.

    Raises:
        BadInput: it does.
    """
    path = folder / NAME
    known = load(path, MANIFEST, make_again=_AGAIN).source if path.is_file() else ""
    if known and known != source:
        raise BadInput(
            "the folder holds the report of another target",
            where=str(folder),
            expected=source,
            got=known,
            fix="-o DIR names the folder; what it holds is replaced",
        )


def named_files(folder: Path) -> frozenset[str]:
    """Return the names of the files that a report wrote to a folder; empty without a costproof manifest."""
    try:
        return frozenset(load(folder / NAME, MANIFEST, make_again=_AGAIN).files)
    except BadInput:
        return frozenset()


def check_manifest(folder: Path) -> None:
    """Check that the files of a folder belong to one report; a folder without a manifest is not checked.

    Raises:
        BadInput: a file is missing, or is not the one that the manifest names.
    """
    path = folder / NAME
    if not path.exists():
        return
    left = _MOST_BYTES
    for name, expected in sorted(load(path, MANIFEST, make_again=_AGAIN).files.items()):
        if Path(name).name != name:
            raise BadInput("this is not the name of a file in the folder", where=f"$.files in {path}", got=name[:80])
        file = folder / name
        found = ""
        with suppress(OSError):
            if file.is_file() and (left := left - file.stat().st_size) >= 0:  # nothing that never ends
                with file.open("rb") as content:
                    found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != expected:
            raise BadInput(
                "the folder holds files of two runs",
                where=str(file),
                expected="the file that the manifest names: a report that was killed while it wrote leaves others",
                got="another file" if found else "no such file",
                fix=f"{_AGAIN} writes them anew; to read the capture alone, name {folder / 'capture.json'}",
            )


def capture_file(path: Path) -> Path:
    """Return the file of a capture: the path itself, or the capture in a folder of reports.

    Raises:
        BadInput: the folder holds none, or files of two runs.
    """
    if not path.is_dir():
        return path
    file = path / "capture.json"
    if not file.is_file():
        raise BadInput(
            "the folder holds no capture",
            where=str(path),
            expected=file.name,
            fix="costproof report TARGET -o DIR writes one",
        )
    check_manifest(path)
    return file
