"""Reading and writing files: whole or not at all, with problems addressed by path."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from costproof.ledger.errors import BadInput


def write_text(path: Path, content: str) -> None:
    """Write aside, then rename: a reader sees the old file or the whole new one.

    Raises:
        BadInput: the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe or a device is written to; renaming over it would replace it.
            path.write_text(content, encoding="utf-8")
            return
        handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
                out.write(content)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(aside, 0o666 & ~mask)
            os.replace(aside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(aside)
            raise
    except OSError as error:
        raise BadInput(
            "cannot write a file",
            where=str(path),
            expected="a folder that can be written",
            got=error.strerror or type(error).__name__,
            fix="choose another folder with -o",
        ) from error


HEADER = ("schema", "schema_version", "conventions", "target", "workload", "environment")
"""The keys that every file of ours begins with, so that a reader sees at once what it has."""


def json_text(value: object) -> str:
    """Deterministic JSON: the header first, all other keys sorted, one space a level, a trailing line feed."""
    ordered = _sorted(value)
    if isinstance(ordered, dict):
        ordered = {**{k: ordered[k] for k in HEADER if k in ordered}, **ordered}
    return json.dumps(ordered, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {k: _sorted(value[k]) for k in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(v) for v in value]
    return value


def read_json(path: Path, *, what: str) -> Any:
    """The JSON value in a file.

    Raises:
        BadInput: the file is missing, unreadable, or no JSON.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"cannot read the {what}", where=str(path), got=error.strerror or type(error).__name__
        ) from error
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as error:
        raise BadInput(f"the {what} is no UTF-8 text", where=f"{path}, byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise BadInput(
            f"the {what} is no JSON",
            where=f"{path}, line {error.lineno} column {error.colno}",
            got=error.msg,
            fix="a truncated file must be made again",
        ) from error
    except RecursionError as error:
        raise BadInput(f"the {what} is nested too deep", where=str(path)) from error


def _no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise BadInput("a JSON object has the same key twice", where=key)
        result[key] = value
    return result
