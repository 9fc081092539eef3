"""Define base classes of results that notebooks and consoles display as reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

DisplayFormat = Literal["text", "md", "html"]
display: Callable[[object, DisplayFormat], str] | None = None
"""Function that formats a result for a notebook. :mod:`costproof.api` sets it, since this package imports no reports.
"""


class NotebookRepr:
    """Base class of results that notebooks display as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the HTML of a notebook cell, or ``None`` if the API was not imported."""
        return None if display is None else display(self, "html")


class ReportRepr(NotebookRepr):
    """Base class of results whose ``repr`` is the text report of their command."""

    __slots__ = ()

    def __repr__(self) -> str:
        return object.__repr__(self) if display is None else display(self, "text").rstrip("\n")

    def _repr_markdown_(self) -> str | None:
        return None if display is None else display(self, "md")
