"""The name that somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def near(name: str, known: Iterable[str], say: str = "{}") -> str | None:
    """``say`` with the nearest known name put in, or ``None`` if none is near."""
    from difflib import get_close_matches

    found = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return say.format(found[0]) if found else None
