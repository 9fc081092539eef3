"""Read versions of installed packages and requirements of extras from package metadata, without heavy imports.

Nothing heavy is imported.
"""

from __future__ import annotations

import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import Final

from costproof.ledger.errors import Incomplete

VERSION: Final = "0.1.0"
"""Version of costproof."""
COUNTING: Final = ("torch", "transformers", "torchlens", "sympy", "opt_einsum")
"""Packages whose version can change a number; opt_einsum is one since torch uses it to reorder einsums."""
FORMULAS: Final = ("costproof", "sympy")
"""Packages whose version can change a formula."""


RULES: Final = "rules"
"""Key for the user's own operator rules in the versions of a count."""


_read: Final = cache(version)
"""Memoized look-up of a package version, which takes milliseconds; missing packages are looked up again."""


def installed(package: str) -> str | None:
    """Return the installed version of a distribution, or ``None``."""
    try:
        return _read(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, str]:
    """Return the package versions for the header of every file."""
    found = {p: v for p in COUNTING if (v := installed(p)) is not None}
    return {"costproof": VERSION, "python": platform.python_version(), **found}


_REQUIREMENT: Final = re.compile(r"""(([\w.-]+)[^;]*?)\s*;.*\bextra\s*==\s*['"]([\w-]+)['"].*""")


def advice(extra: str, *only: str) -> str:
    """Return the pip command that installs the missing packages of an extra, or all of its packages if none is missing.

    It names packages, since costproof is in no index, and ``pip install 'costproof[trace]'`` would fail in a clone.

    Args:
        only: packages of the extra (default: all).
    """
    known = packages_of(extra)
    wanted = {name: known.get(name, name) for name in only} or known
    chosen = [text for name, text in wanted.items() if installed(name) is None] or list(wanted.values())
    if not chosen:
        return f"pip install -e '.[{extra}]' in the clone"
    return "pip install " + " ".join(f"'{text}'" for text in sorted(chosen))


def require(extra: str, what: str, *only: str, otherwise: str = "") -> None:
    """Check that the packages of an extra are installed, without importing them.

    Args:
        what: who needs them, as the subject of a sentence.
        only: packages of the extra (default: all).
        otherwise: alternative without them, for the message.

    Raises:
        Incomplete: packages are missing; the message names all of them.
    """
    missing = sorted(name for name in only or packages_of(extra) if installed(name) is None)
    if missing:
        raise Incomplete(
            f"{what} needs packages that are not installed",
            expected=f"the extra [{extra}]",
            got=f"no {', no '.join(missing)}",
            fix="; ".join(filter(None, (advice(extra, *only), otherwise))),
        )


def extras() -> tuple[str, ...]:
    """Return the extras of the installed costproof; empty if it is not installed."""
    try:
        return tuple(metadata("costproof").get_all("Provides-Extra") or ())
    except PackageNotFoundError:
        return ()


def packages_of(extra: str) -> dict[str, str]:
    """Return the requirements of an extra by package name, from installed metadata; empty if not installed."""
    try:
        lines = requires("costproof") or []
    except PackageNotFoundError:
        return {}
    found = [m for m in map(_REQUIREMENT.fullmatch, lines) if m is not None]
    return {m[2]: m[1] for m in found if m[3] == extra}
