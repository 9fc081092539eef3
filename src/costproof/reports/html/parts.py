"""What every page has: its head with the verdict, a bar of shares, findings, conventions at the foot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from costproof.compare.patterns import expand
from costproof.ledger.metrics import Metric
from costproof.ledger.plural import plural, verb
from costproof.ledger.workload import counted_line
from costproof.reports.blocks import Block, Code, Grid, Items, Prose, pieces
from costproof.reports.html.document import Html, h, joined, line, table
from costproof.views.describe import MEANING, model_line, versions_line, workload_line
from costproof.views.numbers import exact, some

if TYPE_CHECKING:
    from costproof.compare.findings import Finding
    from costproof.ledger.metrics import Conventions
    from costproof.ledger.workload import TargetInfo, Workload

_BAD: Final = "unexplained"
GLYPHS: Final = {"exact": "✓", "explained": "≈", "unexplained": "✗", "unsupported": "✗", "incomplete": "?"}
"""Beside the words: colour alone says nothing to many readers."""
LIKE: Final = {
    "right": "exact", "same": "exact", "passed": "exact", "proved": "exact",
    "allowed": "explained",
    "refuted": _BAD, "over": _BAD, "failed": _BAD,
    "undetermined": "incomplete", "unknown": "incomplete",
}  # fmt: skip
"""Verdicts of other comparisons, and which of a report's each is shown like. A change is neither good nor bad."""
MOST: Final = 1_000
"""Rows of a table in the file; the JSON has all."""
AT_ONCE: Final = 100
"""Of them, those that are in the document when it opens."""
MOST_IN_A_CELL: Final = 100
"""Likewise of a notebook, which keeps every cell in its file."""
MOST_FINDINGS: Final = 200
_EVIDENCE: Final = 6


def status(word: str) -> Html:
    """A status with its sign."""
    kind = word.partition(" ")[0]
    kind = LIKE.get(kind, kind)
    sign = h("span", f"{GLYPHS.get(kind, '·')} ", aria_hidden="true")  # the word says it already
    return h("span", sign, word, class_=f"status {kind if kind in GLYPHS else 'other'}")


def head(title: str, verdict: str, sentence: str, told: Iterable[str]) -> Html:
    """Title, verdict in a sentence, models and workloads; and the switch between light and dark."""
    return h(
        "header",
        h("a", "Skip to the content", href="#content", class_="skip"),
        h("p", "costproof", h("button", "Dark", id="theme", type="button", hidden=True), class_="bar"),
        h("h1", title),
        verdict_line(verdict, sentence),
        (h("p", line, class_="about") for line in told),
    )


def verdict_line(verdict: str, sentence: str) -> Html:
    """The verdict in a sentence."""
    return h("p", sentence, class_=f"verdict {LIKE.get(verdict, verdict)}", id="verdict")


def about(target: TargetInfo, workload: Workload) -> str:
    """Which model and workload, for the head of a page."""
    line = counted_line(target, workload)
    return f"{model_line(target)} · {workload.name}: {workload_line(workload)} · {line[:1].lower()}{line[1:]}"


def chips(values: Iterable[tuple[str, str, str]], first: Metric) -> Html:
    """The choice of a metric: its name, its title, what it comes to. Hidden where there is no script to act on it."""
    made = (
        h(
            "label",
            h("input", type="radio", name="metric", value=m, checked=m == first),
            h("span", title),
            h("b", said),
        )
        for m, title, said in values
    )
    return h("fieldset", h("legend", "Metric"), made, class_="chips", hidden=True)


def folded(title: str, *inside: Html | None) -> Html:
    """What opens on a click."""
    return h("details", h("summary", title), *inside)


def prose(said: Prose) -> Html:
    """A text of which pieces are code."""
    return joined(*(h("code", p) if isinstance(p, Code) else p for p in pieces(said)))


def blocks(found: Iterable[Block]) -> Html:
    """Paragraphs, lists and tables."""
    return joined(*map(_block, found))


def _block(block: Block) -> Html:
    if isinstance(block, Items):
        return h("ul", (h("li", prose(item)) for item in block.items))
    if isinstance(block, Grid):
        return table(block.head, (map(prose, row) for row in block.rows), align=block.align)
    return h("p", prose(block))


def number(value: int | None, shown: str) -> str:
    """A number as it is read, which the script sorts and copies by its exact value; the text alone for ``None``."""
    return shown if value is None else h("data", shown, value=value, title=exact(value))


@dataclass(frozen=True, slots=True)
class Item:
    """A row of a table, and what belongs to it."""

    cells: tuple[str, ...]
    status: str
    """What the script filters by."""
    more: Html | None = None
    """What opens below the row."""
    title: str = ""
    """Of :attr:`more`."""


def sifted(
    head: Sequence[str], items: Sequence[Item], *, name: str, align: str, file: str = "the JSON", most: int = MOST
) -> Html:
    """A table that the script makes searchable, with a choice of status, and sorted by any column.

    Args:
        name: of one row: ``claim``.
        file: what has the rows beyond ``most``.
    """
    bodies = [
        h(
            "tbody",
            line("td", item.cells, align),
            h("tr", h("td", folded(item.title, item.more), colspan=len(head)), class_="more") if item.more else None,
            data_status=item.status,
        )
        for item in items[:most]
    ]
    more = f"{len(items) - most:,} more {verb(len(items) - most)} in {file}." if len(items) > most else ""
    said = h("p", more, class_="said", role="status", data_more=more)
    shown, rest = bodies[:AT_ONCE], bodies[AT_ONCE:]
    made = h(
        "div", h("table", h("thead", line("th", head, align)), *shown, aria_label=f"{name}s"), class_="wide", tabindex=0
    )
    # What a template holds is not in the document: the script takes rows out of it.
    needs = f"{len(rest):,} more {verb(len(rest), 'needs', 'need')} scripts."
    kept = (h("noscript", h("p", needs)), h("template", *rest)) if rest else ()
    return h("div", h("div", said, class_="tools"), made, *kept, class_="sift", data_name=name, data_step=AT_ONCE)


def reasons(title: str, why: Sequence[str]) -> Html | None:
    """What keeps a result from being whole, before everything else."""
    shown = [h("li", w) for w in why[:MOST_FINDINGS]]
    return h("section", h("h2", title), h("ul", shown), class_="open") if why else None


def foot(conventions: Conventions, environment: dict[str, str], *more: str) -> Html:
    """Conventions and versions, without which no number can be compared."""
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
    """A bar of shares, as long as the page unless ``scale`` is; the table beside it has the numbers."""
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
    """The colour of a part of the bar."""
    return h("svg", h("rect", width="100%", height="100%", class_=f"s{place % 8}"), class_="swatch", aria_hidden="true")


def finding(place: int, f: Finding) -> Html:
    """One finding with its causes and their evidence."""
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
        joined(" (", h("code", cause.expression), ")") if cause.expression else None,
        _evidence(cause.evidence),
    )


def _evidence(names: Sequence[str]) -> Html | None:
    return h("p", "seen in ", h("code", some(names, _EVIDENCE)), class_="evidence") if names else None
