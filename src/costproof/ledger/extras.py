"""What the optional parts of costproof need, and the command that installs it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata, requires
from typing import Final

from costproof.ledger.environment import installed
from costproof.ledger.errors import Incomplete

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
