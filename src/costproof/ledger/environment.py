"""Read versions of installed packages, and requirements of optional extras, from package metadata.

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


_REQUIREMENT: Final = re.compile(r"""(([\w.-]+)[^;]*?)\s*;.*\bextra\s*==\s*['"]([\w-]+)['"].*""")


def advice(extra: str, *only: str) -> str:
    """The command that installs what is missing of an extra, or the whole extra where nothing is.

    It names packages: no index has costproof, so ``pip install 'costproof[trace]'`` would fail in a clone.

    Args:
        only: these packages of it.
    """
    known = packages_of(extra)
    wanted = {name: known.get(name, name) for name in only} or known
    chosen = [text for name, text in wanted.items() if installed(name) is None] or list(wanted.values())
    if not chosen:
        return f"pip install -e '.[{extra}]' in the clone"
    return "pip install " + " ".join(f"'{text}'" for text in sorted(chosen))


def require(extra: str, what: str, *only: str, otherwise: str = "") -> None:
    """Check that the packages of an extra are installed; nothing is imported.

    Args:
        what: who needs them, as the subject of a sentence.
        only: these packages of it; all of them unless given.
        otherwise: what to do without them, if anything.

    Raises:
        Incomplete: a package is missing; the message names all that are.
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
    """Return the optional parts that the installed costproof has; none where it is not installed."""
    try:
        return tuple(metadata("costproof").get_all("Provides-Extra") or ())
    except PackageNotFoundError:
        return ()


def packages_of(extra: str) -> dict[str, str]:
    """Name -> requirement, as the metadata of the installed costproof have them; none where it is not installed."""
    try:
        lines = requires("costproof") or []
    except PackageNotFoundError:
        return {}
    found = [m for m in map(_REQUIREMENT.fullmatch, lines) if m is not None]
    return {m[2]: m[1] for m in found if m[3] == extra}
