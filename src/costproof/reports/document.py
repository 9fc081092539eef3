"""Build reports as documents of prose, lists, tables and folded details, which printers format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from costproof.ledger.metrics import Conventions
from costproof.ledger.workload import TargetInfo, Workload, counted_line
from costproof.views.describe import MEANING, model_line, versions_line, workload_line

Form = Literal["text", "md", "html", "cell"]
"""Formats for human readers; ``cell`` is HTML without scripts, for notebooks.

Subjects select their content by format; printers determine the appearance.
"""


class Code(str):
    """A name or an expression, set in code font."""

    __slots__ = ()


class Strong(str):
    """Bold text."""

    __slots__ = ()


class Markdown(str):
    """Markdown markup inside prose, printed without escaping."""

    __slots__ = ()


Prose = str | tuple[str, ...]
"""Plain text, or a tuple of texts and marked-up pieces such as :class:`Code` and :class:`Strong`; not escaped yet."""


@dataclass(frozen=True, slots=True)
class Number:
    """A formatted integer with its exact value, by which pages sort and copy it."""

    value: int | None
    shown: str


@dataclass(frozen=True, slots=True)
class Status:
    """A status or verdict, printed in its colour after its glyph."""

    word: str
    more: Prose = ""
    """Text that follows the status in the same cell."""


Cell = Prose | Number | Status


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph of secondary importance: a unit, a caveat or a method."""

    text: Prose


@dataclass(frozen=True, slots=True)
class Verdict:
    """The sentence that states the verdict, for documents whose header does not have it."""

    word: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Items:
    """A bulleted list of items."""

    items: tuple[Prose, ...]


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table row with further details, which pages show on a click."""

    cells: tuple[Cell, ...]
    status: str = ""
    """The value by which a searchable table filters the row."""
    more: tuple[Block, ...] = ()
    title: str = ""
    """Title of :attr:`more`."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, of which plain text and Markdown show the first :attr:`most` rows and the number of the others."""

    head: tuple[str, ...]
    align: str
    """One letter per column, ``l`` or ``r``; the last one also applies to all columns that follow."""
    rows: Sequence[tuple[Cell, ...] | TableRow]
    title: Prose = ""
    most: int | None = None
    noun: str = "row"
    """Singular noun for a row: ``claim``."""
    rest: str = "the JSON"
    """Where the remaining rows are: ``certificate.json``."""
    keys: int | None = None
    """Leading columns that identify a row and repeat where a screen splits the table; default: the text columns."""
    searchable: bool = False
    """Whether HTML pages make the table searchable and sortable."""
    total: bool = False
    """Whether the last row is a sum."""
    prose: bool = False
    """Whether the last column holds sentences, which screens may break."""
    style: str = ""
    """CSS class of the table on HTML pages."""

    @property
    def cells(self) -> list[tuple[Cell, ...]]:
        """Return the cells of all rows, without the rows' details."""
        return [row.cells if isinstance(row, TableRow) else row for row in self.rows]

    @property
    def left(self) -> int:
        """Return the number of leading columns that are aligned to the left."""
        return len(self.align) - len(self.align.lstrip("l"))

    @property
    def left_out(self) -> int:
        """Return the number of rows beyond :attr:`most`."""
        return 0 if self.most is None else max(0, len(self.rows) - self.most)


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks folded under a title in Markdown and on pages, and left out of plain text."""

    title: Prose
    body: Sequence[Block]


@dataclass(frozen=True, slots=True)
class DocumentSection:
    """Blocks under a heading."""

    title: Prose
    body: Sequence[Block]
    flagged: bool = False
    """Whether pages emphasise the section, since its content keeps the result from being settled."""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Equation:
    """A displayed formula: LaTeX for Markdown, the expression for plain text, MathML for pages."""

    expression: str
    latex: str = ""
    mathml: str = ""


@dataclass(frozen=True, slots=True)
class Markup:
    """Finished markup in the output format of the document: a picture, a tree, or a group of choices."""

    text: str


Block = Prose | Note | Verdict | Items | Table | Details | DocumentSection | Equation | Markup


@dataclass(frozen=True, slots=True)
class Document:
    """A report on one subject."""

    title: Prose
    body: Sequence[Block]
    verdict: str = ""
    sentence: str = ""
    """The verdict in one sentence, printed below the title."""
    about: Sequence[Prose] = ()
    """Lines that describe the counted model, workload and conditions."""
    foot: Sequence[Block] = ()
    """Conventions and package versions, printed at the end."""
    sign: str = ""
    """An emoji in front of the title of a comment."""
    data: dict[str, Any] = field(default_factory=dict)
    """Data that the script of a page reads."""


def plain_text(prose: Prose) -> str:
    """Return prose as plain text, without code and bold markup."""
    return prose if isinstance(prose, str) else "".join(prose)


def pieces(prose: Prose) -> tuple[str, ...]:
    """Return prose as a tuple of its pieces (text, code, bold); a plain string is one piece."""
    return (prose,) if isinstance(prose, str) else prose


def code_list(names: Iterable[str], between: str = ", ") -> tuple[str, ...]:
    """Return prose that lists names in code font with separators between them."""
    joined = [piece for name in names for piece in (between, Code(name))]
    return tuple(joined[1:])


def subject_lines(target: TargetInfo, workload: Workload, form: Form) -> list[Prose]:
    """Return lines that identify the counted model and workload, and list what the count omits."""
    counted = counted_line(target, workload)
    if form == "md":
        return [
            ("Model ", Code(target.name), f": {model_line(target)}"),
            ("Workload ", Code(workload.name), f": {workload_line(workload)}"),
            counted,
        ]
    if form == "text":
        return [f"model: {model_line(target)}", f"workload: {workload.name}: {workload_line(workload)}", counted]
    line = f"{model_line(target)} · {workload.name}: {workload_line(workload)} · "
    return [line + counted[:1].lower() + counted[1:]]


def conventions_foot(
    answers: Conventions, environment: dict[str, str], *more: Prose, before: Sequence[Prose] = ()
) -> list[Block]:
    """Return the foot of a report: conventions and package versions, without which numbers cannot be compared."""
    rows = []
    for f in fields(answers):
        answer = str(getattr(answers, f.name))
        rows.append((Code(f.name), Code(answer), MEANING.get((f.name, answer), "")))
    table = Table(("Question", "Answer", "Meaning"), "lll", rows)
    return [DocumentSection("Conventions", [*before, table, *more, f"Made with {versions_line(environment)}."])]
