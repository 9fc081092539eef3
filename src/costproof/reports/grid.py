"""A table on a terminal: words, numbers, words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def grid(first: str, numbers: Sequence[str], last: str) -> Table:
    """The head of a table whose numbers stand at the right of their columns. rich is imported only here."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    found.add_column(first, no_wrap=True)
    for title in numbers:
        found.add_column(title, justify="right", no_wrap=True)
    found.add_column(last, no_wrap=True)
    return found
