"""Sections of a report in words: paragraphs, lists and tables, which Markdown and HTML are written of alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from costproof.reports.escape import code, markdown, table


class Code(str):
    """A name or an expression, typeset as code."""

    __slots__ = ()


Prose = str | tuple[str, ...]
"""A text, or pieces of one, of which some are :class:`Code`."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Prose, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table."""

    head: tuple[str, ...]
    align: str
    """One letter per column: ``l`` or ``r``."""
    rows: tuple[tuple[Prose, ...], ...]


Block = str | tuple[str, ...] | Items | Grid


def listed(names: Iterable[str], between: str = ", ") -> tuple[str, ...]:
    """Names as code, with commas."""
    pieces = [piece for name in names for piece in (between, Code(name))]
    return tuple(pieces[1:])


def pieces(prose: Prose) -> tuple[str, ...]:
    """A prose's pieces."""
    return (prose,) if isinstance(prose, str) else prose


def prose_md(prose: Prose) -> str:
    """One line of Markdown."""
    return "".join(code(p) if isinstance(p, Code) else markdown(p) for p in pieces(prose))


def blocks_md(blocks: Iterable[Block]) -> list[str]:
    """Lines of Markdown, a blank one between blocks."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Items):
            made = [f"- {prose_md(item)}" for item in block.items]
        elif isinstance(block, Grid):
            made = table(block.head, block.align, [tuple(map(prose_md, row)) for row in block.rows])
        else:
            made = [prose_md(block)]
        lines += [*([""] if lines else []), *made]
    return lines
