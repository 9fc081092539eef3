"""Define the report of a run, whose results can be rendered to every output and written to a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from costproof.ledger.errors import Absent, BadInput
from costproof.ledger.files import first_bytes, json_text
from costproof.ledger.progress import Progress, silent
from costproof.ledger.schema import to_data
from costproof.ledger.time_limits import time_limit
from costproof.ledger.writing import places, write_texts
from costproof.reports.outputs import OUTPUTS, REGISTRY
from costproof.views.manifest import MANIFEST, NAME, manifest, named_files
from costproof.views.results import Results

SECONDS: Final = 120
"""Limit of processor seconds to render one output of a capture."""


@dataclass(frozen=True, eq=False, repr=False)
class Report(Results):
    """The results of a run, renderable to every output; ``print`` shows the summary table."""

    def render(self, name: str, width: int | None = None) -> str:
        """Return the text of an output such as ``static-md``; ``costproof render --list`` names them all.

        Args:
            width: columns of the screen that it is read on; ``None`` is a file.

        Raises:
            BadInput: there is no such output.
            Absent: the run has no data for it.
        """
        output = REGISTRY.load(name)
        assert output.data is not None
        with time_limit(SECONDS, "the capture takes too long to render", where=name):
            return output.text(output.data(self), width)


class Written(NamedTuple):
    """The files that writing a report folder wrote and removed."""

    files: tuple[Path, ...]
    removed: tuple[Path, ...]
    """Files of an earlier run that were removed."""


def write_report(found: Report, folder: Path, progress: Progress = silent, *, source: str = "") -> Written:
    """Write all files of a report or none, then remove files of an earlier run that the report does not have.

    Of an earlier run are the files that its manifest names, and the pictures of its callgraph. Other files stay.
    The manifest is replaced first: from then on the folder is refused until all its files are there.

    Args:
        source: what the manifest says was counted.

    Raises:
        BadInput: the folder cannot be made or written.
    """
    texts: dict[Path, str] = {}
    old: list[Path] = []
    named = named_files(folder)
    for done, output in enumerate(OUTPUTS):
        progress("write", done, len(OUTPUTS))
        if output.folder in ("report", "measured") and output.data is not None:
            try:
                texts[folder / output.file] = output.text(output.data(found))
                continue
            except Absent:
                pass
        if output.file in named or (named and output.folder == "later"):
            old.append(folder / output.file)
    files = {folder / NAME: json_text(to_data(MANIFEST, manifest(texts, source))), **texts}
    removed = write_texts(files, gone=[p for p in old if p not in files])
    progress("write", len(OUTPUTS), len(OUTPUTS))
    return Written(tuple(files), removed)


_HEADER_BYTES: Final = 100
"""Bytes at the start of costproof's files within which the schema is stated."""


def check_report_folder(folder: Path) -> None:
    """Check that a report can be written to a folder without overwriting files of other programs.

    Raises:
        BadInput: as it does, or a JSON file there has the name of one of ours and is another.
    """
    check_folder(folder, (output.file for output in OUTPUTS if output.folder in ("report", "measured")))
    for output in OUTPUTS:
        path = folder / output.file
        if output.folder != "report" or output.kind is None or not path.is_file():
            continue
        with suppress(OSError):
            if b'"schema": "costproof/' not in first_bytes(path, _HEADER_BYTES):
                raise BadInput(
                    "a file of this name exists, and costproof did not write it",
                    where=str(path),
                    expected="a file that costproof wrote, or none",
                    fix="choose another folder with -o",
                )


def check_folder(folder: Path, files: Iterable[str] = ()) -> None:
    """Check, before any work, that files can be written to a folder.

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
