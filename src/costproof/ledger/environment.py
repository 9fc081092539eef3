"""Versions of what counts, read from package metadata: nothing heavy is imported."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

VERSION: Final = "0.1.0"
"""Of costproof."""
COUNTING: Final = ("torch", "transformers", "torchlens", "sympy", "opt_einsum")
"""Packages whose version can change a number; with the last, where it is installed, torch orders an einsum."""
FORMULAS: Final = ("costproof", "sympy")
"""Those that can change one of the formulas."""


RULES: Final = "rules"
"""Names the operator rules of the user's own among the versions."""


_read: Final = cache(version)
"""Metadata takes milliseconds to parse; a package that is missing is looked for again."""


def installed(package: str) -> str | None:
    """The version of a distribution, or ``None``."""
    try:
        return _read(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, str]:
    """What goes into the header of every file."""
    found = {p: v for p in COUNTING if (v := installed(p)) is not None}
    return {"costproof": VERSION, "python": platform.python_version(), **found}
