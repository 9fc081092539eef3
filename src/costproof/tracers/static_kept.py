"""Static ledgers that were counted before, read again without torch: to import it, and to build the model on shapes
for the names of its exports (:mod:`.export_cache`), takes most of the time of a report whose exports are kept.

A ledger is found again by the target with its whole configuration, the workload and what surrounds them, and holds as
long as no file that Python had loaded when it was counted has changed, and no package has come or gone. It is kept by
a command alone, and of a model whose code is installed: nobody can have changed what a program only holds in memory.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress, silent
from costproof.ledger.schema import adapter
from costproof.ledger.workload import Workload
from costproof.models.configured import Configured
from costproof.models.target import Exportable
from costproof.opgraph.rules.files import in_force
from costproof.tracers import static
from costproof.tracers.export_cache import DAMAGED, keep, kept_file, read
from costproof.tracers.fingerprint import INSTALLED, OWN, digest, surroundings

_COMMAND: Final = "costproof"
"""The name of the script that is the command."""
_MAIN: Final = ("__main__", "__mp_main__")
_PYTHON: Final = Path(os.__file__).resolve().parent


def static_ledger(target: Exportable, workload: Workload, progress: Progress = silent) -> Ledger:
    """:func:`.static.static_ledger`, or what it gave before for the same target, workload, code and versions.

    Raises:
        Incomplete: as it does; a failure is not kept.
    """
    file = _file(target, workload)
    if file is None:
        return static.static_ledger(target, workload, progress)
    found = _read(file)
    if found is None:
        found = static.static_ledger(target, workload, progress)
        with suppress(OSError):  # a file that was loaded has gone since
            _write(file, found)
    return found


def _file(target: Exportable, workload: Workload) -> Path | None:
    """Where the ledger stands or would stand; ``None``: it is not kept."""
    own = "torch" not in sys.modules and _is_command() and not in_force()
    if not own or not isinstance(target, Configured):
        return None
    # The fields of a target are its configuration and how it is run: all that decides what is built.
    return kept_file(lambda: digest([repr((type(target), target, workload)), surroundings(), _packages()]))


def _is_command() -> bool:
    """Whether this process is a command of costproof, which runs no code of anybody else."""
    place = getattr(sys.modules.get(_MAIN[0]), "__file__", None)
    return place is not None and (Path(place).stem == _COMMAND or OWN in Path(place).resolve().parents)


def _packages() -> list[list[Any]]:
    """The folders that code is loaded from; of those of installed packages, when one came or went."""
    installed = {p for p in sys.path if INSTALLED & set(Path(p).parts) and Path(p).is_dir()}
    return [[p, os.stat(p).st_mtime_ns if p in installed else None] for p in sys.path]


def _loaded() -> dict[str, list[int]] | None:
    """The files that Python has loaded, with time and size; ``None`` if one is of no installed package."""
    found: dict[str, list[int]] = {}
    for name, module in tuple(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if name in _MAIN or not isinstance(place, str) or not Path(place).is_file():  # torch makes some in memory
            continue
        if not (INSTALLED & set(Path(place).parts) or {OWN, _PYTHON} & set(Path(place).resolve().parents)):
            return None
        found[place] = _stamp(place)
    return found


def _stamp(place: str) -> list[int]:
    known = os.stat(place)
    return [known.st_mtime_ns, known.st_size]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A ledger as JSON holds it; pydantic checks the types."""

    name: str
    files: dict[str, list[int]]
    """As :func:`_loaded` gives them."""
    ledger: Ledger


def _read(file: Path) -> Ledger | None:
    try:
        kept = adapter(_Kept).validate_json(read(file), strict=True)
        if kept.name != file.name or any(_stamp(place) != known for place, known in kept.files.items()):
            return None
        return kept.ledger
    except DAMAGED:
        return None


def _write(file: Path, found: Ledger) -> None:
    """Keep a ledger, if what will be read is what was counted."""
    files = _loaded()
    if files is None:
        return
    as_json = adapter(Ledger)
    data = json.dumps({"name": file.name, "files": files, "ledger": as_json.dump_python(found, mode="json")})
    if as_json.validate_python(json.loads(data)["ledger"]) == found:
        keep(file, data.encode())
