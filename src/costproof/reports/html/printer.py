"""Print documents as HTML pages and notebook cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from costproof.compare.patterns import expand
from costproof.ledger.metrics import Metric
from costproof.ledger.plural import plural, verb
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Details,
    Document,
    DocumentSection,
    Equation,
    Items,
    Markup,
    Note,
    Number,
    Prose,
    Status,
    Strong,
    Table,
    TableRow,
    Verdict,
    pieces,
    plain_text,
    subject_lines,
)
from costproof.reports.html.document import Html, h, join_markup, line, page, table
from costproof.views.describe import MEANING, versions_line
from costproof.views.numbers import exact, first_names

if TYPE_CHECKING:
    from costproof.compare.findings import Finding
    from costproof.ledger.metrics import Conventions
    from costproof.ledger.workload import TargetInfo, Workload

_BAD: Final = "unexplained"
GLYPHS: Final = {"exact": "✓", "explained": "≈", "unexplained": "✗", "unsupported": "✗", "incomplete": "?"}
"""Signs printed next to the status words, since many readers cannot rely on colour."""
LIKE: Final = {
    "right": "exact", "same": "exact", "passed": "exact", "proved": "exact",
    "allowed": "explained",
    "refuted": _BAD, "over": _BAD, "failed": _BAD,
    "undetermined": "incomplete", "unknown": "incomplete",
}  # fmt: skip
"""Report verdict whose style another verdict shares, by the latter; changes between versions stay neutral."""
MOST: Final = 1_000
"""Maximum number of table rows in an HTML file; the JSON has all."""
AT_ONCE: Final = 100
"""Maximum number of table rows that are rendered when a page opens."""
MOST_IN_A_CELL: Final = 100
"""Maximum number of rows in a notebook cell, which is saved with the notebook."""
MOST_FINDINGS: Final = 200
_EVIDENCE: Final = 6


class HtmlPrinter:
    """Prints a document as an HTML page, or as the parts of a notebook cell.

    Args:
        most: rows of a searchable table.
    """

    def __init__(self, most: int = MOST) -> None:
        """Set the number of rows beyond which a table is searchable."""
        self.most = most

    def document(self, d: Document) -> str:
        """Return the document as an HTML page."""
        top = head(plain_text(d.title), d.verdict, d.sentence, map(plain_text, d.about))
        foot = (
            block for part in d.foot for block in (self.foot(part) if isinstance(part, DocumentSection) else [part])
        )
        return page(plain_text(d.title), top, map(self.block, d.body), h("footer", map(self.block, foot)), d.data)

    def foot(self, section: DocumentSection) -> Iterable[Block]:
        """Return the blocks of the last section, with conventions and versions."""
        yield Markup(h("h2", self.prose(section.title)))
        yield from section.body

    def cell(self, d: Document) -> Iterable[Html]:
        """Yield the HTML blocks of a notebook cell, without conventions and versions."""
        yield h("p", h("b", plain_text(d.title)), class_="title")
        yield verdict_line(d.verdict, d.sentence) if d.verdict else h("p", d.sentence)
        yield from (h("p", plain_text(line), class_="about") for line in d.about)
        yield from map(self.block, d.body)

    def blocks(self, blocks: Iterable[Block]) -> Html:
        """Return the HTML of some blocks."""
        return join_markup(*map(self.block, blocks))

    def block(self, block: Block) -> Html:
        """Return the HTML of one block."""
        match block:
            case Note(said):
                return h("p", self.prose(said), class_="note")
            case Verdict(word, sentence):
                return verdict_line(word, sentence)
            case Items(items):
                return h("ul", (h("li", self.prose(item)) for item in items))
            case Table():
                return self.table(block)
            case Details(title, body):
                return details(self.prose(title), self.blocks(body))
            case DocumentSection(title, body):
                flag = "open" if block.flagged else None
                return h("section", h("h2", self.prose(title)), map(self.block, body), class_=flag, id=block.id)
            case Equation(mathml=mathml):
                return h("div", Html(mathml), class_="equation", tabindex=0)
            case Markup(text):
                return Html(text)
            case _:
                return h("p", self.prose(block))

    def table(self, t: Table) -> Html:
        """Return the HTML of a table."""
        title = h("h3", self.prose(t.title)) if t.title else None
        if t.searchable:
            rows = [row if isinstance(row, TableRow) else TableRow(row) for row in t.rows]
            return join_markup(title, self.searchable(t, rows))
        left = f"{t.left_out:,} more {verb(t.left_out)} in {t.rest}."
        made = table(t.head, (map(self.shown, row) for row in t.cells[: t.most]), align=t.align, class_=t.style)
        return join_markup(title, made, h("p", left) if t.left_out else None)

    def searchable(self, t: Table, rows: Sequence[TableRow]) -> Html:
        """Return a table that the script can search, filter by status, and sort by any column."""
        bodies = [
            h(
                "tbody",
                line("td", map(self.shown, row.cells), t.align),
                h("tr", h("td", details(row.title, self.blocks(row.more)), colspan=len(t.head)), class_="more")
                if row.more
                else None,
                data_status=row.status,
            )
            for row in rows[: self.most]
        ]
        left = len(rows) - self.most
        more = f"{left:,} more {verb(left)} in {t.rest}." if left > 0 else ""
        said = h("p", more, class_="said", role="status", data_more=more)
        first, later = bodies[:AT_ONCE], bodies[AT_ONCE:]
        grid = h("table", h("thead", line("th", t.head, t.align)), *first, aria_label=f"{t.noun}s")
        # The content of a template is not in the document: the script takes rows out of it.
        needs = f"{len(later):,} more {verb(len(later), 'needs', 'need')} scripts."
        kept = (h("noscript", h("p", needs)), h("template", *later)) if later else ()
        wide = h("div", grid, class_="wide", tabindex=0)
        return h("div", h("div", said, class_="tools"), wide, *kept, class_="sift", data_name=t.noun, data_step=AT_ONCE)

    def shown(self, cell: Cell) -> str:
        """Return the HTML of a table cell."""
        match cell:
            case Number(value, shown):
                return number(value, shown)
            case Status(word, more):
                return join_markup(status(word), self.prose(more)) if more else status(word)
            case _:
                return self.prose(cell)

    def prose(self, prose: Prose) -> Html:
        """Return prose as HTML, with code and bold text; finished markup is not escaped again."""
        return join_markup(*map(_piece, pieces(prose)))


def _piece(piece: str) -> str:
    return h("code", piece) if isinstance(piece, Code) else h("b", piece) if isinstance(piece, Strong) else piece


def status(word: str) -> Html:
    """Return a status word after its glyph, which is hidden from screen readers."""
    kind = word.partition(" ")[0]
    kind = LIKE.get(kind, kind)
    sign = h("span", f"{GLYPHS.get(kind, '·')} ", aria_hidden="true")  # the word already states it
    return h("span", sign, word, class_=f"status {kind if kind in GLYPHS else 'other'}")


def head(title: str, verdict: str, sentence: str, told: Iterable[str]) -> Html:
    """Return the head of a page: title, verdict, lines about the subject, and the light/dark switch."""
    return h(
        "header",
        h("a", "Skip to the content", href="#content", class_="skip"),
        h("p", "costproof", h("button", "Dark", id="theme", type="button", hidden=True), class_="bar"),
        h("h1", title),
        verdict_line(verdict, sentence),
        (h("p", line, class_="about") for line in told),
    )


def verdict_line(verdict: str, sentence: str) -> Html:
    """Return the paragraph that states the verdict."""
    return h("p", sentence, class_=f"verdict {LIKE.get(verdict, verdict)}", id="verdict")


def about(target: TargetInfo, workload: Workload) -> str:
    """Return the line about the model and the workload for the head of a page."""
    return plain_text(subject_lines(target, workload, "html")[0])


def chips(values: Iterable[tuple[str, str, str]], first: Metric) -> Html:
    """Return radio buttons that choose a metric, from (name, title, total); hidden without scripts."""
    made = (
        h("label", h("input", type="radio", name="metric", value=m, checked=m == first), h("span", title), h("b", said))
        for m, title, said in values
    )
    return h("fieldset", h("legend", "Metric"), made, class_="chips", hidden=True)


def details(title: str, *inside: Html | None) -> Html:
    """Return a ``<details>`` element, which unfolds on a click."""
    return h("details", h("summary", title), *inside)


def number(value: int | None, shown: str) -> str:
    """Return a formatted number with its exact value for sorting and copying; only the text for ``None``."""
    return shown if value is None else h("data", shown, value=value, title=exact(value))


def reasons(title: str, why: Sequence[str]) -> Html | None:
    """Return a section with the reasons why a result is incomplete; ``None`` if there are none."""
    shown = [h("li", w) for w in why[:MOST_FINDINGS]]
    return h("section", h("h2", title), h("ul", shown), class_="open") if why else None


def foot(conventions: Conventions, environment: dict[str, str], *more: str) -> Html:
    """Return the foot of a page: conventions and package versions, without which numbers cannot be compared."""
    answers = {f.name: str(getattr(conventions, f.name)) for f in fields(conventions)}
    rows = [(q, a, MEANING.get((q, a), "")) for q, a in answers.items()]
    return h(
        "footer",
        h("h2", "Conventions"),
        table(("Question", "Answer", "Meaning"), rows, align="lll"),
        (h("p", text) for text in more if text),
        h("p", f"Made with {versions_line(environment)}."),
    )


def shares(parts: Sequence[tuple[str, int | Fraction | None]], scale: int | None = None) -> Html:
    """Return an SVG bar with one segment per share; its full length is ``scale``, by default the sum."""
    whole = sum(v or 0 for _, v in parts) if scale is None else scale
    at: int | Fraction = 0
    bars = []
    for i, (name, value) in enumerate(parts):
        if value and whole:
            x, width = (f"{1000 * n // whole / 10}%" for n in (at, value))
            bars.append(h("rect", h("title", name), x=x, width=width, height="100%", class_=f"s{i % 8}"))
            at += value
    return h("svg", bars, class_="shares", aria_hidden="true")


def swatch(place: int) -> Html:
    """Return the legend sample in the colour of segment ``place`` of a :func:`shares` bar."""
    return h("svg", h("rect", width="100%", height="100%", class_=f"s{place % 8}"), class_="swatch", aria_hidden="true")


def finding(place: int, f: Finding) -> Html:
    """Return the HTML of a finding with its causes and their evidence."""
    path = expand(f.module)[0] if f.level in ("module", "judge") else ""
    link = h("a", f.id, href=f"#{quote(f.stage)}/{quote(path)}") if path else h("b", f.id)
    many = f", {plural(f.count, 'module')}" if f.count != 1 else ""
    values = ", ".join(f"{s} {exact(v)}" for s, v in sorted(f.values.items()))
    error = h("p", "analytic minus static, one module: ", h("code", f.error_expression)) if f.error_expression else None
    return h(
        "li",
        h("p", status(f.status), " ", link, many),
        h("p", f"{values}; delta {exact(f.delta)}, residual {exact(f.residual)}"),
        error,
        h("ul", (_cause(c) for c in f.causes)) if f.causes else None,
        _evidence(f.evidence),
        id=f"f{place}",
    )


def _cause(cause: object) -> Html:
    from costproof.compare.findings import CAUSES, Cause

    assert isinstance(cause, Cause)
    named = "" if cause.accepted else ", names a defect"
    return h(
        "li",
        h("b", cause.kind.replace("_", " ")),
        f" {exact(cause.amount)}{named}: {cause.note or CAUSES[cause.kind]}",
        join_markup(" (", h("code", cause.expression), ")") if cause.expression else None,
        _evidence(cause.evidence),
    )


def _evidence(names: Sequence[str]) -> Html | None:
    return h("p", "seen in ", h("code", first_names(names, _EVIDENCE)), class_="evidence") if names else None
