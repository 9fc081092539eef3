"""Exports that were made before, kept in a folder of the user: the slowest part of a second count of a model.

A file stands under the name of all that decides its export (:mod:`.fingerprint`). It is plain JSON, compressed, with
the checksum of that; one that is damaged, too large or no regular file, or that another version wrote, is as if it were
not there. A file is written whole under another name first, so that several processes can share the folder.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.files import MAX_BYTES, first_bytes
from costproof.ledger.schema import adapter
from costproof.ledger.writing import through, write_texts
from costproof.models.jobs import ExportJob
from costproof.opgraph.stored import Reader, StoredGraph, StoredSize, StoredValue, Writer, back
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.fingerprint import fingerprint

FOLDER: Final = "COSTPROOF_CACHE"
"""The variable of the environment that names the folder; empty: nothing is kept."""
MOST_FILES: Final = 500
"""Of some 100 kB; beyond that the ones go that were not read for longest."""

_SUFFIX: Final = ".json.gz"
_NAME: Final = re.compile(r"[0-9a-f]{64}\.json\.gz")
_GZIP: Final = 31
"""``wbits`` of zlib for one member of gzip with its checksum."""
DAMAGED: Final = (OSError, zlib.error, ValueError, LookupError, CostproofError)
"""What is raised where a file is not there, not whole or not ours."""

_used: ContextVar[bool] = ContextVar("used", default=True)


@contextmanager
def exports_kept(used: bool) -> Iterator[None]:
    """Whether exports are looked up and kept while this lasts."""
    before = _used.set(used)
    try:
        yield
    finally:
        _used.reset(before)


def folder() -> Path | None:
    """Where exports are kept; ``None``: nowhere."""
    named = os.environ.get(FOLDER)
    if named is not None:
        return Path(named) if named else None
    with suppress(RuntimeError):  # there is no home
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "costproof" / "exports"
    return None


def kept_file(name: Callable[[], str | None]) -> Path | None:
    """Where the file of a name stands, or would stand; ``None``: nothing is kept, or it has no name.

    Args:
        name: makes the name, if anything is kept.
    """
    where = folder() if _used.get() else None
    found = name() if where is not None else None
    return where / f"{found}{_SUFFIX}" if where is not None and found is not None else None


def kept_export(job: ExportJob) -> Exported:
    """:func:`.export_graph`, or what it gave before for the same module, arguments, code and versions.

    Raises:
        Incomplete: as :func:`.export_graph`; a failure is not kept.
    """
    file = kept_file(partial(fingerprint, job))
    if file is None:
        return export_graph(job)
    name = file.name.removesuffix(_SUFFIX)
    found = _read(file, name, job)
    if found is None:
        found = export_graph(job)
        _write(file, name, found)
    return found


def _read(file: Path, name: str, job: ExportJob) -> Exported | None:
    try:
        stored = adapter(_Stored).validate_json(read(file), strict=True)
        return _exported(stored, job) if stored.name == name else None
    except DAMAGED:
        return None


def _write(file: Path, name: str, found: Exported) -> None:
    """Keep an export, if what will be read is what was written; a folder that cannot be written keeps nothing."""
    try:
        data = json.dumps({"name": name, **_data(found)})
        same = _exported(adapter(_Stored).validate_json(data, strict=True), found.job) == found
    except (
        TypeError,
        ValueError,
        CostproofError,
    ):  # an expression outside of our grammar: with a number that is not whole
        return
    if same:
        keep(file, data.encode())


def read(file: Path) -> bytes:
    """Return what is in a kept file, which counts as read now.

    Raises:
        one of :data:`DAMAGED`: it is not there, not a regular file, not whole, or too large.
    """
    unpacking = zlib.decompressobj(_GZIP)
    found = unpacking.decompress(first_bytes(file, MAX_BYTES, regular=True), MAX_BYTES + 1)
    if not unpacking.eof or len(found) > MAX_BYTES:
        raise ValueError("it is cut off or too large")
    with suppress(OSError):
        os.utime(file)
    return found


def keep(file: Path, data: bytes) -> None:
    """Write a file whole or not at all; a folder that cannot be written keeps nothing."""
    with suppress(OSError, BadInput):
        if file.is_symlink() or through(file):
            file.unlink()  # a pipe or a device, which nobody waits at; nobody links files here either
        elif file.is_dir():
            file.rename(file.with_name(f"{file.name}.folder"))  # not ours, and what is in it stays
        write_texts({file: gzip.compress(data, 1, mtime=0)}, mode=0o700, durable=False)
        _forget(file.parent)


def _forget(where: Path) -> None:
    files = [f for f in where.glob(f"*{_SUFFIX}") if _NAME.fullmatch(f.name)]  # others are not ours
    for old in sorted(files, key=lambda f: f.stat().st_mtime)[:-MOST_FILES]:
        old.unlink(missing_ok=True)


def _data(found: Exported) -> dict[str, Any]:
    writer = Writer()
    return {
        "graph": writer.graph(found.graph),
        "past": writer.numbers(found.cache_inputs),
        "parameters": [[name, list(shape), dtype] for name, (shape, dtype) in found.parameters.items()],
        "buffers": [*found.buffers.items()],
        "guards": found.guards,
        "notes": found.notes,
        "values": writer.values,
    }


@dataclass(frozen=True, slots=True)
class _Stored:
    """An export as JSON holds it; pydantic checks the types."""

    name: str
    graph: StoredGraph
    past: list[int]
    parameters: list[tuple[str, list[StoredSize], str]]
    buffers: list[tuple[str, int | None]]
    guards: list[str]
    notes: list[str]
    values: list[StoredValue]


def _exported(stored: _Stored, job: ExportJob) -> Exported:
    reader = Reader(stored.values)
    return Exported(
        job,
        reader.graph(stored.graph),
        {name: (tuple(map(back, shape)), dtype) for name, shape, dtype in stored.parameters},
        dict(stored.buffers),
        reader.tensors(stored.past),
        tuple(stored.guards),
        tuple(stored.notes),
    )
