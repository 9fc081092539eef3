"""Cache exported graphs and static ledgers as compressed JSON files in the user's cache folder.

Exporting is the slowest part of a second count of a model. The name of a file is the fingerprint of everything that
decides its content (:mod:`.fingerprint`). A file that is damaged, too large, not a regular file or written by another
version is treated as missing. Files are written under another name and renamed, so processes can share the folder.

Reading a cached ledger needs neither torch nor the model, whose import and construction take most of the time of a
report with cached exports. Its fingerprint covers the target with its whole configuration and the workload. It is valid
while no file that Python had loaded when it was counted has changed and no package was added or removed. Ledgers are
cached only by the ``costproof`` command and only for models from installed packages, because nothing else can have
changed in memory there.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.files import MAX_BYTES, first_bytes
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress, silent
from costproof.ledger.schema import adapter
from costproof.ledger.workload import Workload
from costproof.ledger.writing import write_texts, written_in_place
from costproof.models.native import Configured, Native
from costproof.models.reader_check import check_reader
from costproof.models.specs import ExportJob
from costproof.models.target import Exportable
from costproof.opgraph.graph import GraphReader, GraphWriter, StoredGraph, StoredSize, StoredValue, from_plain
from costproof.opgraph.rules.files import in_force
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.fingerprint import INSTALLED, OWN, digest, fingerprint, surroundings

FOLDER: Final = "COSTPROOF_CACHE"
"""Name of the environment variable with the cache folder; empty disables the cache."""
MOST_FILES: Final = 500
"""Maximum number of cached files, of some 100 kB each; the least recently read ones are deleted."""

_SUFFIX: Final = ".json.gz"
_NAME: Final = re.compile(r"[0-9a-f]{64}\.json\.gz")
_GZIP: Final = 31
"""Argument ``wbits`` of zlib for a single gzip member with a checksum."""
DAMAGED: Final = (OSError, zlib.error, ValueError, LookupError, CostproofError)
"""Exceptions raised when a cached file is missing, incomplete or written by another program."""

_enabled: ContextVar[bool] = ContextVar("used", default=True)


@contextmanager
def cache_enabled(used: bool) -> Iterator[None]:
    """Enable or disable the cache of exports and static ledgers while the block runs."""
    before = _enabled.set(used)
    try:
        yield
    finally:
        _enabled.reset(before)


def folder() -> Path | None:
    """Return the folder of the cache, or ``None`` if it is disabled."""
    named = os.environ.get(FOLDER)
    if named is not None:
        return Path(named) if named else None
    with suppress(RuntimeError):  # without a home folder
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "costproof" / "exports"
    return None


def cache_file(name: Callable[[], str | None]) -> Path | None:
    """Return the path of a cached file, which need not exist; ``None`` if the result cannot be cached.

    Args:
        name: returns the fingerprint; called only if the cache is enabled.
    """
    where = folder() if _enabled.get() else None
    found = name() if where is not None else None
    return where / f"{found}{_SUFFIX}" if where is not None and found is not None else None


def cached_export(job: ExportJob) -> Exported:
    """Return the export of a job, from the cache if module, arguments, code and versions are the same.

    Raises:
        Incomplete: as :func:`.export_graph`; failures are not cached.
    """
    file = cache_file(partial(fingerprint, job))
    if file is None:
        return export_graph(job)
    name = file.name.removesuffix(_SUFFIX)
    found = _load_export(file, name, job)
    if found is None:
        found = export_graph(job)
        _save_export(file, name, found)
    return found


def _load_export(file: Path, name: str, job: ExportJob) -> Exported | None:
    try:
        stored = adapter(_StoredExport).validate_json(load(file), strict=True)
        return _read_export(stored, job) if stored.name == name else None
    except DAMAGED:
        return None


def _save_export(file: Path, name: str, found: Exported) -> None:
    """Cache an export if reading back gives an equal one; skip the file if the folder cannot be written."""
    try:
        data = json.dumps({"name": name, **_export_data(found)})
        same = _read_export(adapter(_StoredExport).validate_json(data, strict=True), found.job) == found
    except (TypeError, ValueError, CostproofError):  # an expression with a fraction, which the stored form lacks
        return
    if same:
        save(file, data.encode())


def load(file: Path) -> bytes:
    """Return the content of a cached file, and set its time of last use.

    Raises:
        one of :data:`DAMAGED`: it is missing, not a regular file, incomplete, or too large.
    """
    unpacking = zlib.decompressobj(_GZIP)
    found = unpacking.decompress(first_bytes(file, MAX_BYTES, regular=True), MAX_BYTES + 1)
    if not unpacking.eof or len(found) > MAX_BYTES:
        raise ValueError("it is cut off or too large")
    with suppress(OSError):
        os.utime(file)
    return found


def save(file: Path, data: bytes) -> None:
    """Write a file completely or not at all; skip it if the folder cannot be written."""
    with suppress(OSError, BadInput):
        if file.is_symlink() or written_in_place(file):
            file.unlink()  # a pipe or a device, which would block, or a link, which is not ours
        elif file.is_dir():
            file.rename(file.with_name(f"{file.name}.folder"))  # not ours, so its content is kept
        write_texts({file: gzip.compress(data, 1, mtime=0)}, mode=0o700, durable=False)
        files = [f for f in file.parent.glob(f"*{_SUFFIX}") if _NAME.fullmatch(f.name)]  # other files are not ours
        for old in sorted(files, key=lambda f: f.stat().st_mtime)[:-MOST_FILES]:
            old.unlink(missing_ok=True)


def _export_data(found: Exported) -> dict[str, Any]:
    writer = GraphWriter()
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
class _StoredExport:
    """An exported graph as JSON; pydantic validates the types."""

    name: str
    graph: StoredGraph
    past: list[int]
    parameters: list[tuple[str, list[StoredSize], str]]
    buffers: list[tuple[str, int | None]]
    guards: list[str]
    notes: list[str]
    values: list[StoredValue]


def _read_export(stored: _StoredExport, job: ExportJob) -> Exported:
    reader = GraphReader(stored.values)
    return Exported(
        job,
        reader.graph(stored.graph),
        {name: (tuple(map(from_plain, shape)), dtype) for name, shape, dtype in stored.parameters},
        dict(stored.buffers),
        reader.tensors(stored.past),
        tuple(stored.guards),
        tuple(stored.notes),
    )


def check_configuration_file(target: object) -> None:
    """Check that transformers reads the configuration file of a target as its family does.

    Nothing is checked for other targets, or if transformers is not installed. The first check of a file imports torch,
    which takes longer than formulas; a file that agreed is not checked again while versions and code are the same.

    Raises:
        Incomplete, BadInput: as :func:`~costproof.models.reader_check.check_reader`.
    """
    file = target.file if isinstance(target, Native) else None
    if file is None or find_spec("transformers") is None:
        return
    read: Any = file.read
    known = cache_file(lambda: digest([file.text, repr(read), repr(read.native()), surroundings()]))
    agreed = repr(read).encode()
    with suppress(*DAMAGED):
        if known is not None and load(known) == agreed:
            return
    check_reader(file)
    if known is not None:
        save(known, agreed)


_COMMAND: Final = "costproof"
"""Name of the script that runs the ``costproof`` command."""
_MAIN: Final = ("__main__", "__mp_main__")
_PYTHON: Final = Path(os.__file__).resolve().parent


def cached_static_ledger(target: Exportable, workload: Workload, progress: Progress = silent) -> Ledger:
    """Return the static ledger, from the cache if target, workload, code and versions are the same.

    Raises:
        Incomplete: as :func:`.static.static_ledger`; failures are not cached.
    """
    from costproof.tracers.static import static_ledger

    file = _ledger_file(target, workload)
    if file is None:
        return static_ledger(target, workload, progress)
    found = _load_ledger(file)
    if found is None:
        found = static_ledger(target, workload, progress)
        with suppress(OSError):  # a loaded file was deleted meanwhile
            _save_ledger(file, found)
    return found


def _ledger_file(target: Exportable, workload: Workload) -> Path | None:
    """Return the path of the cached ledger of this run; ``None`` if the ledger cannot be cached."""
    own = "torch" not in sys.modules and _is_command() and not in_force()
    if not own or not isinstance(target, Configured):
        return None
    # The fields of a target are its configuration and run options, which decide what is built.
    return cache_file(lambda: digest([repr((type(target), target, workload)), surroundings(), _package_folders()]))


def _is_command() -> bool:
    """Return whether this process is the ``costproof`` command rather than a program that imports it."""
    place = getattr(sys.modules.get(_MAIN[0]), "__file__", None)
    return place is not None and (Path(place).stem == _COMMAND or OWN in Path(place).resolve().parents)


def _package_folders() -> list[list[Any]]:
    """Return the folders of ``sys.path``, with the modification times of those with installed packages."""
    installed = {p for p in sys.path if INSTALLED & set(Path(p).parts) and Path(p).is_dir()}
    return [[p, os.stat(p).st_mtime_ns if p in installed else None] for p in sys.path]


def _loaded_files() -> dict[str, list[int]] | None:
    """Return (modification time, size) of all loaded modules by file; ``None`` if one is outside installed packages."""
    found: dict[str, list[int]] = {}
    for name, module in tuple(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if name in _MAIN or not isinstance(place, str) or not Path(place).is_file():  # torch creates some in memory
            continue
        if not (INSTALLED & set(Path(place).parts) or {OWN, _PYTHON} & set(Path(place).resolve().parents)):
            return None
        found[place] = _stamp(place)
    return found


def _stamp(place: str) -> list[int]:
    known = os.stat(place)
    return [known.st_mtime_ns, known.st_size]


@dataclass(frozen=True, slots=True)
class _StoredLedger:
    """A ledger as JSON; pydantic validates the types."""

    name: str
    files: dict[str, list[int]]
    """Stamp from :func:`_loaded_files`, by path of each package file with loaded code."""
    ledger: Ledger


def _load_ledger(file: Path) -> Ledger | None:
    try:
        stored = adapter(_StoredLedger).validate_json(load(file), strict=True)
        if stored.name != file.name or any(_stamp(place) != known for place, known in stored.files.items()):
            return None
        return stored.ledger
    except DAMAGED:
        return None


def _save_ledger(file: Path, found: Ledger) -> None:
    """Cache a ledger if reading back gives an equal one."""
    files = _loaded_files()
    if files is None:
        return
    as_json = adapter(Ledger)
    data = json.dumps({"name": file.name, "files": files, "ledger": as_json.dump_python(found, mode="json")})
    if as_json.validate_python(json.loads(data)["ledger"]) == found:
        save(file, data.encode())
