"""The page of a certificate: what is proved, over which domain, and every claim with its formula."""

from __future__ import annotations

from collections.abc import Iterator

from costproof.compare.proof.certificate import Certificate, Claim
from costproof.ledger.symbols import factored, text
from costproof.reports.blocks import Block, Code, Items
from costproof.reports.certificate_words import SENTENCE, sections, totals
from costproof.reports.html.document import Html, h, page, table
from costproof.reports.html.mathml import mathml
from costproof.reports.html.parts import MOST, Item, blocks, foot, head, sifted
from costproof.views.describe import model_line
from costproof.views.numbers import cut, exact

_HEAD = ("Stage", "Call", "Modules", "×", "Operator", "Metric", "Method", "Formula")
_LONGEST = 120
_OPEN = ("Counterexamples", "Not carried out")


def certificate_page(found: Certificate) -> str:
    """The file."""
    title = f"Certificate: {found.target.name}"
    again = "Repeat it with costproof prove --verify certificate.json."
    top = head(title, found.verdict, SENTENCE[found.verdict], [model_line(found.target)])
    return page(title, top, certificate_body(found), foot(found.conventions, found.environment, again))


def certificate_body(found: Certificate, most: int = MOST) -> Iterator[Html]:
    """The sections of the text, with formulas typeset, and the claims one by one."""
    for title, told in sections(found):
        if title == "FLOPs of this configuration":
            yield h("section", h("h2", "Claims"), _claims(found, most), id="claims")
            yield h("section", h("h2", title), _sums(found), blocks(told[1:]))
        else:
            yield h("section", h("h2", title), blocks(told), class_="open" if title in _OPEN else None)


def _claims(found: Certificate, most: int) -> Html:
    items = [
        Item(
            (c.stage, c.invocation, h("code", c.module), exact(c.modules), c.kind, c.metric, c.method,
             h("code", cut(c.formula, _LONGEST))),
            c.method, _claim(found, c), "At this configuration, and for which values",
        )
        for c in found.claims
    ]  # fmt: skip
    return sifted(_HEAD, items, name="claim", align="lllrllll", most=most, file="certificate.json")


def _claim(found: Certificate, c: Claim) -> Html:
    free = [(Code(s), f": {found.symbols[s].meaning}" if s in found.symbols else "") for s in c.free]
    told: list[Block] = [("Shown for ", "; ".join(c.runs), ", version ", Code(c.version), ".")]
    told += ["For all values of", Items(tuple(free))] if free else []
    return h("div", h("div", Html(mathml(c.at_config, found.symbols)), class_="equation", tabindex=0), blocks(told))


def _sums(found: Certificate) -> Html:
    rows = [(stage, Html(mathml(text(factored(total)), found.symbols))) for stage, total in totals(found).items()]
    return table(("Stage", "FLOPs, 2 per multiply-accumulate"), rows, align="l")
