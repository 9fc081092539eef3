"""Print documents as Markdown: full reports, and comments limited in size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Details,
    Document,
    DocumentSection,
    Equation,
    Items,
    Markdown,
    Markup,
    Note,
    Number,
    Prose,
    Status,
    Strong,
    Table,
    Verdict,
    pieces,
)
from costproof.reports.escape import code, details, markdown, table, unbroken
from costproof.views.numbers import first_names

BUDGET: Final = 60_000
"""Maximum size of a comment in bytes.

GitHub takes 65,536 characters and 262,144 bytes; no character is shorter than a byte.
"""
_LOUD: Final = ("unexplained", "unsupported")


class MarkdownPrinter:
    """Prints a document as Markdown.

    Args:
        budget: bytes that the text must stay below: folded details beyond it are left out and named. The text is then
            a comment, with a second-level title and numbers that never break from their units. None is a whole report.
    """

    def __init__(self, budget: int | None = None) -> None:
        """Set the size limit in bytes; ``None`` for a full report without limit."""
        self.budget = budget

    def document(self, d: Document) -> str:
        """Return the Markdown of a document; a single line if it has no title."""
        sign = f"{d.sign} " if d.sign else ""
        about = [self.prose(line) for line in d.about]
        if not d.title:
            return f"{sign}{' '.join([markdown(d.sentence), *about])}\n"
        lines = [f"{'#' if self.budget is None else '##'} {sign}{self.prose(d.title)}"]
        if d.sentence:
            lines += ["", f"**{markdown(d.sentence)}**"]
        lines += ["", *(f"- {line}" if len(about) > 1 else line for line in about)] if about else []
        left: list[str] = []
        size = _size(lines)
        for block in (*d.body, *d.foot):
            made = self.block(block)
            more = _size(made) + 1
            if self.budget is not None and isinstance(block, Details):
                title = self.prose(block.title)
                # The titles of omitted sections need room too.
                if size + more + sum(len(t.encode()) + 2 for t in (*left, title)) > self.budget - 200:
                    left.append(title)
                    continue
            lines += ["", *made] if made else []
            size += more
        if left:
            lines += [
                "",
                f"Left out, to stay below {self.budget:,} bytes: {first_names(left, 20)}. The JSON has everything.",
            ]
        return "\n".join(lines).rstrip() + "\n"

    def blocks(self, blocks: Iterable[Block], level: int = 2) -> list[str]:
        """Return the lines of some blocks, separated by blank lines."""
        lines: list[str] = []
        for block in blocks:
            made = self.block(block, level)
            lines += [*([""] if lines and made else []), *made]
        return lines

    def block(self, block: Block, level: int = 2) -> list[str]:
        """Return the lines of one block."""
        match block:
            case Note(said):
                return [self.prose(said)]
            case Verdict(sentence=said):
                return [markdown(said)]
            case Items(items):
                return [self.item(item) for item in items]
            case Table():
                return self.table(block)
            case Details(title, body):
                return details(self.prose(title), self.blocks(body, level + 1))[:-1]
            case DocumentSection(title, body):
                inside = self.blocks(body, level + 1)
                return [f"{'#' * level} {self.prose(title)}", *(["", *inside] if inside else [])]
            case Equation(latex=latex):
                return ["$$", latex, "$$"]
            case Markup(text):
                return text.split("\n")
            case _:
                return [self.prose(block)]

    def item(self, item: Prose) -> str:
        """Return a list item; leading spaces make it an item of a nested list."""
        text = self.prose(item)
        return f"{' ' * (len(text) - len(text.lstrip(' ')))}- {text.lstrip(' ')}"

    def table(self, t: Table) -> list[str]:
        """Return the lines of a table with its title, and a line on omitted rows."""
        align = t.align.ljust(len(t.head), t.align[-1])
        rows = [tuple(map(self.cell, row, align)) for row in t.cells[: t.most]]
        title = [self.prose(t.title), ""] if t.title else []
        more = ["", f"… and {plural(t.left_out, f'more {t.noun}')} in {t.rest}."] if t.left_out else []
        return [*title, *table(tuple(map(markdown, t.head)), align, rows), *more]

    def cell(self, cell: Cell, align: str) -> str:
        """Return the text of a cell."""
        match cell:
            case Number(shown=shown):
                text = markdown(shown)
            case Status(word, more):
                text = (f"**{markdown(word)}**" if word in _LOUD else markdown(word)) + self.prose(more)
            case _:
                text = self.prose(cell)
        return unbroken(text) if self.budget is not None and align == "r" else text

    def prose(self, prose: Prose) -> str:
        """Return prose as one line of Markdown, escaped, with code and bold markup."""
        return "".join(_piece(p) for p in pieces(prose))


def _piece(piece: str) -> str:
    if isinstance(piece, Markdown):
        return piece
    if isinstance(piece, Code):
        return code(piece)
    return f"**{markdown(piece)}**" if isinstance(piece, Strong) else markdown(piece)


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
