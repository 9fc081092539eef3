"""Read and write JSON deterministically, and read CSV and bytes, with limits on size."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import select
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput

MAX_BYTES: Final = 64 * 2**20
"""Maximum size of a JSON file in bytes; the capture of a model with 61 layers has 14 million."""
MAX_CONFIGURATION: Final = 16 * 2**20
"""Maximum size of a configuration in bytes; one that lists 50,000 unquantised layers has three million."""
MAX_DIGITS: Final = 300
"""Maximum digits of a number in JSON, so that sums and products of a few of them can be printed."""
MAX_PARTS: Final = 3_000_000
"""Maximum number of commas and opening brackets in JSON; a capture with 61 layers has 584 thousand."""
WAIT: Final = 60.0
"""Seconds to wait for the end of a pipe's content."""
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""Matches a JSON escape of one half of a surrogate pair; only texts with a match need a check."""
_LONG: Final = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))

HEADER = ("schema", "schema_version", "conventions", "target", "workload", "environment")
"""First keys of every costproof file."""


def json_text(value: object) -> str:
    """Return deterministic JSON: header first, other keys sorted, indent 1, trailing line feed."""
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


def read_json(path: Path, *, what: str, most: int = MAX_BYTES) -> Any:
    """Read the JSON value in a file.

    Args:
        most: maximum bytes.

    Raises:
        BadInput: the file is missing, unreadable, too large or not JSON.
    """
    return json_in(content(path, what=what, most=most), where=str(path), what=what, most=most)


def content(path: Path, *, what: str, most: int = MAX_BYTES) -> bytes:
    """Return the content of a file or a pipe, at most one byte more than ``most``.

    Raises:
        BadInput: the file is missing or unreadable, or a pipe that was read before.
    """
    try:
        raw = first_bytes(path, most + 1)
    except OSError as error:
        raise BadInput(
            f"cannot read the {what}", where=str(path), got=error.strerror or type(error).__name__
        ) from error
    if not raw and path.is_fifo():
        fix = "write it to a file: this command reads it more than once"
        raise BadInput(f"the {what} is an empty pipe", where=str(path), fix=fix)
    return raw


def read_configuration(path: Path) -> Any:
    """Read a configuration as JSON; see :func:`read_json`."""
    return read_json(path, what="configuration", most=MAX_CONFIGURATION)


def csv_rows(path: Path, *, what: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the nonempty rows of a CSV file, each with its last line number.

    Raises:
        BadInput: the file is missing, unreadable, too large, not text or not CSV.
    """
    try:
        raw = first_bytes(path, MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"cannot read the {what}", where=str(path), got=error.strerror or type(error).__name__
        ) from error
    if len(raw) > MAX_BYTES:
        raise BadInput(f"the {what} is too large", where=str(path), expected=f"at most {MAX_BYTES:,} bytes")
    if sum(map(raw.count, (b",", b"\n", b"\r"))) > MAX_PARTS:
        limit = f"at most {MAX_PARTS:,} commas and ends of lines"
        raise BadInput(f"the {what} has too many parts", where=str(path), expected=limit)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"the {what} is not UTF-8 text", where=f"{path}, byte {error.start}") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise BadInput(f"the {what} is not CSV", where=f"{path}, line {reader.line_num}", got=str(error)) from error


def first_bytes(path: Path, count: int, *, regular: bool = False) -> bytes:
    """Return at most ``count`` bytes from the start of a file or of a pipe, even of a pipe without a writer.

    Args:
        regular: refuse pipes, devices and folders.

    Raises:
        OSError: it cannot be read; ``TimeoutError`` if a pipe does not end in time.
    """
    until, found = time.monotonic() + WAIT, bytearray()
    with open(path, "rb", buffering=0, opener=_at_once) as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        if regular and not is_regular:
            raise OSError(errno.EINVAL, "not a regular file")
        waits = hasattr(select, "poll") and not is_regular
        while len(found) < count:
            if waits and not _ready(file.fileno(), until - time.monotonic()):
                raise TimeoutError(errno.ETIMEDOUT, f"a pipe that has not ended after {WAIT:.0f} s")
            piece = file.read(count - len(found))
            if piece == b"":
                break
            found += piece or b""  # nothing yet
    return bytes(found)


def _at_once(path: str, flags: int) -> int:
    """Open a file without blocking, even if it is a pipe without a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _ready(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return seconds > 0 and bool(poll.poll(seconds * 1000))


def json_in(raw: bytes, *, where: str, what: str, most: int = MAX_BYTES) -> Any:
    """Parse JSON from bytes; see :func:`read_json`."""
    if len(raw) > most:
        raise BadInput(f"the {what} is too large", where=where, expected=f"at most {most:,} bytes")
    if found := _LONG.search(raw):
        limit = f"at most {MAX_DIGITS} digits"
        raise BadInput(
            f"the {what} contains a number with too many digits", where=f"{where}, byte {found.start()}", expected=limit
        )
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_PARTS:
        limit = f"at most {MAX_PARTS:,} commas and opening brackets"
        raise BadInput(f"the {what} has too many parts", where=where, expected=limit)
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_no_duplicates)
        if _HALF.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeDecodeError as error:
        raise BadInput(f"the {what} is not UTF-8 text", where=f"{where}, byte {error.start}") from error
    except UnicodeEncodeError as error:
        expected = "Unicode that UTF-8 can write"
        raise BadInput(
            f"the {what} contains an unpaired surrogate", where=where, expected=expected, got=error.object[error.start]
        ) from error
    except json.JSONDecodeError as error:
        raise BadInput(
            f"the {what} is not JSON",
            where=f"{where}, line {error.lineno} column {error.colno}",
            got=error.msg,
            fix="a truncated file must be made again",
        ) from error
    except RecursionError as error:
        raise BadInput(f"the {what} is nested too deep", where=where) from error


def _no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise BadInput("a JSON object has the same key twice", where=key)
        result[key] = value
    return result
