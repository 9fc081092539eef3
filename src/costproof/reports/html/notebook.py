"""Results in a cell of a notebook: the parts of their pages, static, in a style that reaches nothing outside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, singledispatch
from itertools import chain
from typing import Final

from costproof.claims import ClaimsReport
from costproof.compare.diff.types import Diff
from costproof.compare.gate.types import Gate
from costproof.compare.proof.certificate import Certificate
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import Ledger
from costproof.ledger.notebook import Format
from costproof.ledger.plural import plural
from costproof.reports.certificate_words import SENTENCE
from costproof.reports.claims_words import sentence as claims_sentence
from costproof.reports.counters_md import counts
from costproof.reports.diff_words import sentence as diff_sentence
from costproof.reports.explain_texts import explain_md, explain_text
from costproof.reports.gate_words import sentence as gate_sentence
from costproof.reports.html.capture_page import capture_cell
from costproof.reports.html.certificate_page import certificate_body
from costproof.reports.html.claims_page import claims_body
from costproof.reports.html.counters_page import VERDICTS, counters_body
from costproof.reports.html.diff_page import diff_cell
from costproof.reports.html.document import Html, h, joined, part, table
from costproof.reports.html.explanation import explanation_body, explanation_head
from costproof.reports.html.gate_page import gate_body
from costproof.reports.html.parts import MOST_IN_A_CELL, about, verdict_line
from costproof.reports.report import Report
from costproof.views.counters import CounterReport
from costproof.views.describe import counted_lines, model_line
from costproof.views.explanation import Explanation
from costproof.views.numbers import exact

_TAG: Final = re.compile(r"<[^>]*>")
"""Of our own markup, in which every other ``<`` and ``>`` is escaped."""
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
"""What pages leave to the browser, and Jupyter does not."""


def display(value: object, format: Format) -> str:  # noqa: A002
    """Return a result as the text of its command, as Markdown, or as the markup of a cell."""
    if format == "html":
        return cell(value)
    if isinstance(value, Explanation):
        return explain_text(value) if format == "text" else explain_md(value)
    assert isinstance(value, Report)
    return value.render("summary" if format == "text" else "static-md")


def cell(value: object) -> Html:
    """Markup without script, identifiers and links, whose style is of its own elements alone."""
    inside = joined(*_parts(value))
    return h("div", Html(f"<style>{_style()}</style>"), Html(_TAG.sub(_static, inside)), class_="costproof")


def _static(tag: re.Match[str]) -> str:
    """A tag without what would meet another cell's: its identifier, and links to identifiers."""
    bare = re.sub(r' (id|data-more|tabindex)="[^"]*"', "", tag[0])
    return "</span>" if bare == "</a>" else _LINK.sub(r"<span\1>", bare)


@cache
def _style() -> str:
    """The style of pages, nested in the element of the cell. Light or dark is what the notebook is.

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


def _head(title: str, verdict: str, sentence: str, *told: str) -> Iterator[Html]:
    yield h("p", h("b", title), class_="title")
    yield verdict_line(verdict, sentence)
    yield from (h("p", line, class_="about") for line in told)


@_parts.register
def _report(found: Report) -> Iterable[Html | None]:
    told = about(found.capture.target, found.capture.workload)
    return chain(_head(found.capture.target.title, found.verdict, found.sentence, told), capture_cell(found))


@_parts.register
def _diff(found: Diff) -> Iterable[Html | None]:
    names = " → ".join(dict.fromkeys((found.base.name, found.head.name)))
    counted = counted_lines(found.base, found.head)
    return chain(_head(names, found.verdict, diff_sentence(found), *counted), diff_cell(found))


@_parts.register
def _claims(found: ClaimsReport) -> Iterable[Html | None]:
    told = about(found.target, found.workload)
    top = _head(f"Claims on {found.target.title}", found.verdict, claims_sentence(found), told)
    return chain(top, claims_body(found, MOST_IN_A_CELL))


@_parts.register
def _counters(found: CounterReport) -> Iterable[Html | None]:
    told = about(found.target, found.workload)
    said = f"{counts(found.compared)}."
    top = _head(f"Third-party counters on {found.target.title}", VERDICTS[found.exit_code], said, told)
    return chain(top, counters_body(found, MOST_IN_A_CELL))


@_parts.register
def _certificate(found: Certificate) -> Iterable[Html | None]:
    top = _head(f"Certificate: {found.target.name}", found.verdict, SENTENCE[found.verdict], model_line(found.target))
    return chain(top, certificate_body(found, MOST_IN_A_CELL))


@_parts.register
def _gate(found: Gate) -> Iterable[Html | None]:
    names = " → ".join(dict.fromkeys((found.base.name, found.head.name)))
    counted = counted_lines(found.base, found.head)
    top = _head(f"Cost gate: {names}", found.verdict, gate_sentence(found), *counted, f"Policy: {found.policy}")
    return chain(top, gate_body(found, MOST_IN_A_CELL))


@_parts.register
def _explanation(found: Explanation) -> Iterable[Html | None]:
    title, sentence, told = explanation_head(found)
    yield h("p", h("b", title), class_="title")
    yield h("p", sentence)
    yield from (h("p", line, class_="about") for line in told)
    yield from explanation_body(found, MOST_IN_A_CELL)


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
