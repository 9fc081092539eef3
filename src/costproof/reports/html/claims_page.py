"""The page of claims: published numbers beside the truth, each with what leads from one to the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from costproof.claims import ClaimsReport, Judgement
from costproof.reports.claims_words import because, claimed, sentence, story
from costproof.reports.html.document import Html, h, page
from costproof.reports.html.parts import MOST, Item, about, blocks, head, prose, sifted, status
from costproof.views.describe import versions_line
from costproof.views.numbers import exact

_HEAD: Final = ("claim", "verdict", "metric", "claimed", "truth", "claim − truth", "because")
"""The verdict is second, so that a narrow screen shows it."""


def claims_page(found: ClaimsReport) -> str:
    """The file."""
    title = f"Claims on {found.target.title}"
    told = [about(found.target, found.workload)]
    foot = h("footer", h("p", f"Made with {versions_line(found.environment)}."))
    return page(title, head(title, found.verdict, sentence(found), told), claims_body(found), foot)


def claims_body(found: ClaimsReport, most: int = MOST) -> Iterator[Html]:
    """What is claimed where, the truth that it is held against, and the claims."""
    if found.title:
        yield h("p", found.title + (f" ({found.source})" if found.source else "") + ".")
    yield h("p", f"Truth: {found.truth}.", class_="note")
    items = [_item(j) for j in found.judgements]
    claims = sifted(_HEAD, items, name="claim", align="llllrrl", most=most)
    yield h("section", h("h2", "Claims"), claims, id="claims")


def _item(j: Judgement) -> Item:
    delta = f"{j.delta:+,}" if j.delta else "0"
    why = tuple(part.removeprefix(": ") if isinstance(part, str) else part for part in because(j))
    cells = (h("code", j.id), status(j.status), j.metric, h("code", claimed(j)), exact(j.truth), delta, prose(why))
    told = story(j)
    return Item(cells, j.status, blocks(told) if told else None, "How it comes about")
