"""How a model is named: by a registered name, a folder, a configuration, or a function that makes a module."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Final, Literal

from costproof.ledger.errors import BadInput
from costproof.ledger.files import first_bytes

Kind = Literal["name", "folder", "configuration", "file", "module"]

CONFIGURATION: Final = "hf:"
_HEADER: Final = re.compile(rb'"schema":\s*"(costproof/[a-z_]+)"')
_HEADER_BYTES: Final = 256
FACTORY: Final = re.compile(r"(?P<place>.+\.py):(?P<function>\w+)")
_MODULE: Final = re.compile(r"(?P<place>[A-Za-z_][\w.]*):(?P<function>\w+)")
FORMS: Final = "hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE, FILE.py:FUNCTION, package.module:FUNCTION"


def names_function(text: str) -> bool:
    """Whether a text names a function that makes a module, not a file at a revision of git (``main:baseline``).

    A module is one that lies in the current folder, or that Python finds; nothing of it runs.
    """
    if FACTORY.fullmatch(text):
        return True
    found = _MODULE.fullmatch(text)
    if found is None:
        return False
    top = found["place"].partition(".")[0]
    return Path(top).is_dir() or Path(f"{top}.py").is_file() or find_spec(top) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """The name of a model, read."""

    kind: Kind
    place: str
    """The registered name; the folder; behind ``hf:`` a path or a model type; the file; the module."""
    function: str = ""
    """What makes the module, in a file or a module."""

    @property
    def path(self) -> Path | None:
        """The file or folder of a configuration; ``None`` for a model type alone."""
        here = Path(self.place)
        is_path = here.exists() or here.suffix == ".json" or "/" in self.place or "\\" in self.place
        return here if self.kind == "configuration" and is_path else None

    def seen_from(self, folder: Path) -> str:
        """Return the address with its file or folder as a path from a folder."""
        is_path = self.kind in ("file", "folder") or self.path is not None
        place = Path(os.path.relpath(self.place, folder)).as_posix() if is_path else self.place
        head = CONFIGURATION if self.kind == "configuration" else ""
        return f"{head}{place}{f':{self.function}' if self.function else ''}"

    @property
    def name(self) -> str:
        """What the target is called: ``bert``; of a function its file or module too: ``tiny:make``."""
        if self.function:
            return f"{PurePath(self.place).stem if self.kind == 'file' else self.place}:{self.function}"
        return self.label

    @property
    def label(self) -> str:
        """A short word for it, such as a folder can have: ``bert``, ``tiny-make``."""
        if self.function:
            return self.name.replace(":", "-")
        path = PurePath(self.place)
        if not path.name or ".." in (path.name, path.parent.name):  # never the name of a folder above
            path = PurePath(os.path.abspath(self.place))
        return path.parent.name or path.stem if path.name == "config.json" else path.stem or "model"


def _kind_of_ours(file: Path) -> str | None:
    """Return the kind that the header of a file of ours names; ``None``: it is another file, or none."""
    try:
        found = _HEADER.search(first_bytes(file, _HEADER_BYTES, regular=True))
    except OSError:
        return None
    return found[1].decode() if found else None


def address(text: str, names: Container[str] = ()) -> Address:
    """Read the name of a model. Nothing is opened, and nothing runs.

    Args:
        names: what is registered: a registered name is one, whatever else it looks like.

    Raises:
        BadInput: a configuration or a file of which a word is missing.
    """
    if text in names:
        return Address("name", text)
    if text.startswith(CONFIGURATION):
        place = text.removeprefix(CONFIGURATION)
        if not place:
            raise BadInput("no configuration is named", where=text, expected="hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE")
        return Address("configuration", place)
    for kind, form in (("file", FACTORY), ("module", _MODULE)):
        if found := form.fullmatch(text):
            return Address("file" if kind == "file" else "module", found["place"], found["function"])
    if text.endswith(".json") or Path(text).is_file():
        if (ours := _kind_of_ours(Path(text))) is not None:
            raise _counted(text, "file", f"a file of the kind {ours}")
        fix = f"{CONFIGURATION}{text[:80]}" if text.endswith(".json") else f"{text[:80]}:FUNCTION"
        raise BadInput(
            "this names no target",
            where=text[:80],
            expected=FORMS,
            fix=f"{fix} names the model in the file; --config FILE configures a registered target",
        )
    if Path(text).is_dir() or "/" in text or "\\" in text:
        if not Path(text, "config.json").exists() and _kind_of_ours(Path(text, "capture.json")) is not None:
            raise _counted(text, "folder", "a folder of reports")
        return Address("folder", text)
    return Address("name", text)


def _counted(text: str, what: str, got: str) -> BadInput:
    """Return the error on what an earlier run wrote, where a target is expected."""
    return BadInput(
        f"this {what} names no target",
        where=text[:80],
        expected=FORMS,
        got=got,
        fix="costproof diff, gate, roofline and fits take a capture, a baseline or a folder of reports; "
        "costproof explain a capture or such a folder",
    )
