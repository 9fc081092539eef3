"""Base class of results that notebooks and consoles display through the reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Format = Literal["text", "md", "html"]
display: Callable[[object, Format], str] | None = None
"""Formats a result. :mod:`costproof.api` sets it: this room imports no reports."""


class NotebookRepr:
    """A result that a notebook displays as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """Return the markup of a notebook cell, or None (no HTML) if the API was not imported."""
        return None if display is None else display(self, "html")


class ReportRepr(NotebookRepr):
    """A result whose ``repr`` is a report: the text of its command; Markdown where a viewer asks for that."""

    __slots__ = ()

    def __repr__(self) -> str:
        return object.__repr__(self) if display is None else display(self, "text").rstrip("\n")

    def _repr_markdown_(self) -> str | None:
        return None if display is None else display(self, "md")
