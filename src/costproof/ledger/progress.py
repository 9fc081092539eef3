"""Define the callback that reports progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Callback with (phase, steps done, total steps)."""


def silent(what: str, done: int, total: int) -> None:
    """Ignore a progress report."""
