"""Print documents as plain text for files and pipes, and in colour on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import StringIO
from typing import TYPE_CHECKING, Final

from costproof.ledger.plural import plural
from costproof.reports.document import (
    Block,
    Cell,
    Details,
    Document,
    DocumentSection,
    Equation,
    Items,
    Markup,
    Note,
    Number,
    Status,
    Table,
    Verdict,
    plain_text,
)
from costproof.reports.screen import align_table, fill_lines, print_line, print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UNBOUNDED: Final = 100_000
"""Width that stands for unlimited, for text written to a file."""
_STYLES: Final = {
    **dict.fromkeys(("exact", "explained", "right", "same", "passed", "proved"), "green"),
    **dict.fromkeys(("unexplained", "refuted", "over", "failed", "silent"), "bold red"),
    **dict.fromkeys(("unsupported", "incomplete", "undetermined", "unknown"), "bold yellow"),
    "changed": "bold",
    "": "",
    "not-executed": "",
}
"""Style in rich's syntax, by status or verdict."""


class TextPrinter:
    """Prints a document as lines of plain text.

    Args:
        width: columns of the screen; None is a file, which takes lines of any length.
    """

    def __init__(self, width: int | None = None) -> None:
        """Set the width in columns; ``None`` for the unlimited width of a file."""
        self.width = width

    def document(self, d: Document) -> str:
        """Return the document as plain text."""
        head = [plain_text(line) for line in (d.title, *d.about, d.sentence) if line]
        return fill_lines(self.blocks([*d.body, *d.foot], head), self.width)

    def blocks(self, blocks: Iterable[Block], before: Iterable[str] = ()) -> list[str]:
        """Return the lines of some blocks; tables and sections have blank lines around them."""
        lines = list(before)
        apart = False
        for block in blocks:
            made = self.block(block)
            heads = isinstance(block, Table | DocumentSection)
            if made:
                apart = apart and not isinstance(block, Items)  # a list belongs to the table above it
                lines += [*([""] if lines and (heads or apart) else []), *made]
                apart = heads
        return lines

    def block(self, block: Block) -> list[str]:
        """Return the lines of one block."""
        match block:
            case Note(said):
                return [plain_text(said)]
            case Verdict(sentence=said):
                return [said]
            case Items(items):
                return [f"  {plain_text(item)}" for item in items]
            case Table():
                return self.table(block)
            case Details():
                return []
            case DocumentSection(title, body):
                first, *rest = body or [""]
                # A table or a list begins right below its heading.
                return self.blocks(rest, [plain_text(title), *self.block(first)])
            case Equation(expression=expression):
                return [f"  {expression}"]
            case Markup(text):
                return text.split("\n")
            case _:
                return [plain_text(block)]

    def table(self, t: Table) -> list[str]:
        """Return the lines of a table with its title, and a line on omitted rows."""
        rows = [tuple(map(cell_text, row)) for row in t.cells[: t.most]]
        title = [plain_text(t.title)] if t.title else []
        return [*title, *align_table(t.head, rows, t.left, self.width, keys=t.keys, prose=t.prose), *rows_left_out(t)]


def cell_text(cell: Cell) -> str:
    """Return a table cell as plain text."""
    match cell:
        case Number(shown=text):
            return text
        case Status(word, more):
            return word + plain_text(more)
        case _:
            return plain_text(cell)


def rows_left_out(t: Table) -> list[str]:
    """Return a line with the number of omitted table rows, and where to find them."""
    return [f"and {plural(t.left_out, f'more {t.noun}')} in {t.rest}"] if t.left_out else []


class TerminalPrinter:
    """Prints a document on a terminal, with table borders and coloured verdicts."""

    def __init__(self, console: Console) -> None:
        """Set the console to print to."""
        self.console = console

    def document(self, d: Document) -> None:
        """Print the whole document."""
        print_line(self.console, plain_text(d.title), "bold")
        for line in d.about:
            print_line(self.console, plain_text(line))
        if d.sentence:
            print_line(self.console, d.sentence, status_style(d.verdict))
        for block in (*d.body, *d.foot):
            self.block(block)

    def block(self, block: Block) -> None:
        """Print one block; tables inside a section have no borders."""
        match block:
            case Table():
                rows = [[_styled_cell(cell) for cell in row] for row in block.cells[: block.most]]
                align = block.align.ljust(len(block.head), block.align[-1])
                keys = block.left if block.keys is None else block.keys
                print_table(self.console, block.head, align, rows, keys=keys, total=block.total, prose=block.prose)
                for line in rows_left_out(block):
                    print_line(self.console, line)
            case Verdict(word, sentence):
                print_line(self.console, sentence, status_style(word))
            case Note(said):
                print_line(self.console, plain_text(said), "yellow")
            case DocumentSection(title, body):
                self.console.print()
                print_line(self.console, plain_text(title), "bold")
                for line in TextPrinter(self.console.width - 2).blocks(body):
                    print_line(self.console, line if line.startswith("  ") else f"  {line}")
            case _:
                for line in TextPrinter(self.console.width).block(block):
                    print_line(self.console, line)


def status_style(word: str) -> str:
    """Return the terminal style (colour) of a status or verdict."""
    return _STYLES.get(word.partition(" ")[0], "yellow")


def _styled_cell(cell: Cell) -> Text | str:
    from rich.text import Text

    return Text(cell_text(cell), status_style(cell.word)) if isinstance(cell, Status) else cell_text(cell)


def print_plain(write: Callable[[Console], None], width: int | None) -> str:
    """Return what ``write`` prints to a console, as text without colours and trailing spaces.

    Args:
        width: columns of the screen; None is a file, which takes lines of any length.
    """
    from rich.console import Console

    out = StringIO()
    write(
        Console(
            file=out, width=width or _UNBOUNDED, color_system=None, force_terminal=False, highlight=False, emoji=False,
            force_jupyter=False,  # otherwise rich displays it in the cell of a notebook, whatever the file is
        )
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"
