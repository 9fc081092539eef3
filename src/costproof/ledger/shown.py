"""What a notebook shows in place of one line."""

from __future__ import annotations

from importlib import import_module


class Shown:
    """A result that a notebook shows as HTML. Reports know how; they are asked by name, for this room imports none."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module("costproof.reports.html.notebook").cell(self))
