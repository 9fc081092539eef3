"""Display results in notebook cells: the static content of their pages, with a style confined to the cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, singledispatch
from typing import Any, Final

from costproof.claims import ClaimsReport
from costproof.compare.diff.types import Diff
from costproof.compare.gate.types import Gate
from costproof.compare.proof.certificate import Certificate
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import Ledger
from costproof.ledger.notebook import DisplayFormat
from costproof.ledger.plural import plural
from costproof.reports import certificate, claims, counters, diff, explain, gate
from costproof.reports.document import Document, Form
from costproof.reports.html.capture_page import capture_cell
from costproof.reports.html.document import Html, h, join_markup, part, table
from costproof.reports.html.printer import MOST_IN_A_CELL, HtmlPrinter, about, verdict_line
from costproof.reports.markdown import MarkdownPrinter
from costproof.reports.report import Report
from costproof.reports.text import TextPrinter
from costproof.views.counters import CounterReport
from costproof.views.explanation import Explanation
from costproof.views.numbers import exact

_TAG: Final = re.compile(r"<[^>]*>")
"""Matches a tag that costproof's printer wrote; every other ``<`` and ``>`` is escaped in text."""
_LINK: Final = re.compile(r'^<a( class="[^"]*")?[^>]*>$')
_PLAIN: Final = """
& :where(table, thead, tr, th, td) { background: none; border: 0; color: inherit; font-size: inherit; }
& :where(tr, th, td) { line-height: inherit; }
& :where(tr) { padding: 0; text-align: inherit; }
& :where(table) { margin: 0; table-layout: auto; }
& :where(code) { background: none; color: inherit; padding: 0; white-space: inherit; }
& :where(h3) { font-weight: bold; }
[data-jp-theme-light="false"] & { color-scheme: dark; }
"""
"""CSS rules for tables, code and headings that undo those of Jupyter."""


def display(value: object, format: DisplayFormat) -> str:  # noqa: A002
    """Return a result as the text that its command prints, as Markdown, or as HTML of a notebook cell."""
    if format == "html":
        return cell(value)
    if isinstance(value, Explanation):
        printer = TextPrinter() if format == "text" else MarkdownPrinter()
        return printer.document(explain.document(value, format))
    assert isinstance(value, Report)
    return value.render("summary" if format == "text" else "static-md")


def cell(value: object) -> Html:
    """Return a notebook cell: HTML without script, ids and links, with a style that applies only to it."""
    inside = join_markup(*_parts(value))
    return h("div", Html(f"<style>{_style()}</style>"), Html(_TAG.sub(_static, inside)), class_="costproof")


def _static(tag: re.Match[str]) -> str:
    """Return a tag without ids and links, which could collide with those of other cells."""
    bare = re.sub(r' (id|data-more|tabindex)="[^"]*"', "", tag[0])
    return "</span>" if bare == "</a>" else _LINK.sub(r"<span\1>", bare)


@cache
def _style() -> str:
    """Return the style sheet of pages, nested in the cell's element; the notebook's theme selects light or dark.

    Jupyter has colours, alignments and sizes of its own for tables and code in a cell. The name of the element thrice
    is stronger than its selectors, so what a page says holds, and what a page leaves to the browser is put back. A dark
    theme of its own is known by an attribute: the browser is not told.
    """
    text = re.sub(r"/\*.*?\*/|color-scheme: [^;]*;", "", part("page.css"), flags=re.DOTALL)
    nested = re.sub(r":root|(?<![-.#\w])body\b", "&", text)
    return f"{'.costproof' * 3} {{ {_PLAIN} {nested} & {{ padding: .2rem 1rem .6rem; }} }}"


@singledispatch
def _parts(value: object) -> Iterable[Html | None]:
    raise TypeError(type(value).__name__)


@_parts.register
def _report(found: Report) -> Iterable[Html | None]:
    told = about(found.capture.target, found.capture.workload)
    yield h("p", h("b", found.capture.target.title), class_="title")
    yield verdict_line(found.verdict, found.sentence)
    yield h("p", told, class_="about")
    yield from capture_cell(found)


def _subject(document: Callable[[Any, Form], Document]) -> Callable[[object], Iterable[Html]]:
    return lambda found: HtmlPrinter(MOST_IN_A_CELL).cell(document(found, "cell"))


for _type, _document in (
    (ClaimsReport, claims.document), (Certificate, certificate.document), (CounterReport, counters.document),
    (Diff, diff.document), (Explanation, explain.document), (Gate, gate.document),
):  # fmt: skip
    _parts.register(_type, _subject(_document))


@_parts.register
def _ledger(found: Ledger) -> Iterable[Html | None]:
    metrics = [m for m in METRICS if m in found.metrics]
    yield h("p", h("b", f"Ledger of {found.source}"), f": {plural(len(found.nodes), 'cost node')}", class_="title")
    rows = [(stage, *(exact(found.stage_total(stage, m)) for m in metrics)) for stage in found.stages]
    if len(found.stages) != 1:
        rows.append(("total", *(exact(found.total(m)) for m in metrics)))
    yield table(("Stage", *(METRICS[m].title for m in metrics)), rows)
    lacking = [f"{op.op} in {op.stage}" for op in found.unknown_ops]
    yield h("p", f"Operators without a cost rule: {', '.join(lacking)}.") if lacking else None
    yield h("p", "frame(ledger) has every cost node.", class_="note")
