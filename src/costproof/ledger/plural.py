"""Format counts with nouns and verbs in the right number."""

from __future__ import annotations


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 finding``, ``2 findings``, ``2 copies``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def verb(count: int, one: str = "is", many: str = "are") -> str:
    """Return the verb for a count: ``is`` for one, else ``are``."""
    return one if count == 1 else many
