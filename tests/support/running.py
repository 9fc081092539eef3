"""Running the command line in this process, in a folder, with its output caught."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from costproof.cli.main import run


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, so that messages hold relative paths."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def costproof(*arguments: str, cwd: Path, columns: int = 80) -> Result:
    """Run ``costproof`` as a terminal of so many columns that is no terminal would."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    plain = {"COLUMNS": str(columns), "CI": "1", "COSTPROOF_DEBUG": ""}
    with inside(cwd), mock.patch.dict(os.environ, plain), redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Result(code, *texts)


def files(folder: Path) -> list[str]:
    """Every file and folder below, relative and sorted."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
