"""The page of a gate: whether a change may pass, and every limit with what it was held against."""

from __future__ import annotations

from collections.abc import Iterator

from costproof.compare.gate.types import Gate
from costproof.ledger.plural import plural
from costproof.reports.blocks import Items
from costproof.reports.diff_words import change
from costproof.reports.gate_words import HEAD, Line, idle, lines, reasons, sentence
from costproof.reports.html.document import Html, h, page, table
from costproof.reports.html.parts import MOST, Item, blocks, folded, head, number, sifted, status
from costproof.reports.html.parts import reasons as listed
from costproof.views.describe import counted_lines, versions_line


def gate_page(found: Gate) -> str:
    """The file."""
    names = " → ".join(dict.fromkeys((found.base.name, found.head.name)))
    foot = h("footer", (h("p", f"{side.name} made with {versions_line(side.environment)}.")
                        for side in (found.base, found.head)))  # fmt: skip
    title = f"Cost gate: {names}"
    return page(
        title,
        head(
            title,
            found.verdict,
            sentence(found),
            [*counted_lines(found.base, found.head), f"Policy: {found.policy}"],
        ),
        gate_body(found),
        foot,
    )


def gate_body(found: Gate, most: int = MOST) -> Iterator[Html]:
    """Why it is incomplete, every check, allowances to take out, inputs that changed."""
    yield listed("Incomplete" if found.verdict == "incomplete" else "Findings", reasons(found)) or Html()
    items = [_item(line) for line in lines(found, "unknown", "over", "allowed", "passed")]
    table_ = sifted((*HEAD, "Source"), items, name="check", align="lllrrlrrl", most=most)
    yield h("section", h("h2", "Checks"), table_, id="checks")
    if notes := idle(found):
        yield h("section", h("h2", "Allowances to take out"), blocks([Items(tuple(notes))]))
    changed = [(c.key, change(c)) for c in (*found.config.changed, *found.workload.changed)]
    if changed:
        yield folded(plural(len(changed), "change"), table(("Changed", "Base → head"), changed, align="l"))


def _item(line: Line) -> Item:
    c = line.check
    word, place, metric, part, delta, limit, base, head_ = line.cells
    values = (part, number(c.delta, delta), limit, number(c.base, base), number(c.head, head_))
    more = h("p", c.why) if c.why else None
    return Item((status(word), h("code", place), metric, *values, ", ".join(line.sources)), c.status, more, "Why")
