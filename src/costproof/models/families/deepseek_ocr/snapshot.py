"""Snapshot folders of DeepSeek-OCR: recognised by their files and ``config.json`` without running any code."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.files import first_bytes, read_configuration
from costproof.models.families.deepseek_ocr.config import OcrConfig, parse_config

MODELING: Final = "modeling_deepseekocr"
CODE: Final = (f"{MODELING}.py", "deepencoder.py", "modeling_deepseekv2.py")
REQUIRED: Final = ("config.json", *CODE)
"""Required files of a snapshot; weights are not required, because runs can use random ones."""

_MOST_CODE: Final = 2**20
"""Limit of the size, in bytes, of a file that is searched for imports; the largest real file has 84 thousand."""
_CLASS: Final = re.compile(MODELING + r"\.[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folder of remote code and the content of its ``config.json``."""

    folder: str
    """Absolute path of the folder."""
    config: OcrConfig
    config_class: str
    """``module.Class`` of the configuration, from ``auto_map``."""
    model_class: str
    wants: str
    """Version of transformers that wrote the file; empty if unknown."""


def read_snapshot(folder: Path) -> Snapshot:
    """Read a snapshot folder without running its code.

    Raises:
        BadInput: there is no such folder, or it is not a snapshot of DeepSeek-OCR.
        Problems: its ``config.json`` cannot be used.
    """
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    missing += [name for name in imported(folder) if name not in missing and not _is_module(folder / name)]
    if missing:
        raise BadInput(
            "not a whole snapshot of DeepSeek-OCR", where=str(folder),
            expected="the remote code: " + ", ".join(REQUIRED) + ", and what these import from the same folder",
            got="no " + ", ".join(missing), fix="download all *.py files of the snapshot",
        )  # fmt: skip
    path = folder / "config.json"
    data = read_configuration(path)
    config = parse_config(data, where=str(path))
    assert isinstance(data, dict)  # or parse_config had refused it
    classes: Any = data.get("auto_map")
    known = classes if isinstance(classes, dict) else {}
    named: dict[str, Any] = {k: known.get(k) for k in ("AutoConfig", "AutoModel")}
    wrong = {k: repr(v)[:60] for k, v in named.items() if not isinstance(v, str) or not _CLASS.fullmatch(v)}
    if wrong:
        what, expected = "this must name a class of the remote code", f"{MODELING}.CLASS"
        problems = [BadInput(what, where=f"$.auto_map.{k}", expected=expected, got=v) for k, v in wrong.items()]
        raise Problems(f"the configuration {path} cannot be used", problems)
    wants = data.get("transformers_version")
    return Snapshot(
        str(folder.resolve()), config, named["AutoConfig"], named["AutoModel"], wants if isinstance(wants, str) else ""
    )


def imported(folder: Path) -> tuple[str, ...]:
    """Return the names of the local files that the remote code imports, directly or indirectly."""
    found: dict[str, None] = {}
    todo = list(CODE)
    while todo:
        path = folder / todo.pop()
        try:
            nodes = list(ast.walk(ast.parse(first_bytes(path, _MOST_CODE))))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # not there, or no Python: told where it is needed
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                modules = [node.module] if node.module else [alias.name for alias in node.names]
                new = [f"{m.partition('.')[0]}.py" for m in modules]
                todo += [name for name in new if name not in found]
                found.update(dict.fromkeys(new))
    return tuple(sorted(found))


def _is_module(file: Path) -> bool:
    return file.is_file() or file.with_suffix("").is_dir()
