"""Copies of the small remote-code package of ours, to be read, run and spoilt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).parents[1] / "vendor_like"
"""A package with the traits of the vendor's: see its ``modeling_deepseekocr.py``."""

SMALL: dict[str, Any] = {
    "base_size": 128, "image_size": 64, "grid": "2x1", "text_tokens": 5, "new_tokens": 2, "dtype": "float32",
}  # fmt: skip
"""A page of 4 global and 2 crop features: 4 + 2 + 1 + 2 + 1 = 10 vision tokens, S = 15."""


def copied(folder: Path) -> Path:
    """The snapshot in a folder of its own, without what Python may have left beside it."""
    made = folder / "snapshot"
    shutil.copytree(SNAPSHOT, made, ignore=shutil.ignore_patterns("__pycache__", "__init__.py"))
    return made


def rewritten(snapshot: Path, **changes: Any) -> Path:
    """The snapshot with top-level keys of its ``config.json`` changed; ``None`` takes one out."""
    path = snapshot / "config.json"
    data = json.loads(path.read_text())
    data |= changes
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
    return snapshot


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
