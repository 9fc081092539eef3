"""The page of third-party counters: what each prints beside the truth, with causes."""

from __future__ import annotations

from collections.abc import Iterator

from costproof.compare.findings import CAUSES
from costproof.ledger.plural import plural
from costproof.reports.blocks import Block, Code, Grid, Items
from costproof.reports.counters_md import TOOLS, counts, tool
from costproof.reports.counters_table import HEAD, SPENT, Row, groups, printed, spent
from costproof.reports.html.document import Html, h, page, table
from costproof.reports.html.parts import MOST, Item, about, blocks, foot, head, number, reasons, sifted, status
from costproof.views.counters import CounterReport
from costproof.views.numbers import exact

VERDICTS = {0: "explained", 1: "unexplained", 3: "incomplete"}


def counters_page(found: CounterReport) -> str:
    """The file."""
    title = f"Third-party counters on {found.target.title}"
    top = head(title, VERDICTS[found.exit_code], f"{counts(found.compared)}.", [about(found.target, found.workload)])
    return page(title, top, counters_body(found), foot(found.conventions, found.environment))


def counters_body(found: CounterReport, most: int = MOST) -> Iterator[Html]:
    """What failed, all figures, the tools."""
    yield reasons("Incomplete", found.compared.incomplete) or Html()
    yield h(
        "p",
        "Every tool ran on the same inputs, on the meta device, in a process of its own. The value is what it prints, "
        "in its own unit; the error compares it in FLOP with our own count of the same forward. Decode is one step.",
        class_="note",
    )
    items = [_item(title, row) for title, rows, _ in groups(found) for row in rows]
    *others, verdict = HEAD
    figures = sifted(("place", others[0], verdict, *others[1:]), items, name="figure", align="lllllrrrrrr", most=most)
    yield h("section", h("h2", "Figures"), figures, id="figures")
    rows = [[h("code", name), h("code", package), *rest] for name, package, *rest in map(tool, found.compared.tools)]
    yield h(
        "section", h("h2", "Tools"), table(TOOLS, rows, align="l"), table(SPENT, spent(found)) if found.spent else None
    )
    said = (*found.compared.remarks, *printed(found))
    used = sorted({c.kind for f in found.compared.findings for c in f.causes})
    kinds = Items(tuple((Code(kind), f": {CAUSES[kind]}") for kind in used))
    yield h("section", h("h2", "What causes mean"), blocks([kinds])) if used else Html()
    yield blocks([Items(said)]) if said else Html()


def _item(place: str, row: Row) -> Item:
    name, *middle, verdict = row.cells
    numbers = (number(v, shown) for v, shown in zip(row.values, middle, strict=True))
    cells = (place, h("b", name), status(verdict), *numbers)  # the verdict where a narrow screen shows it
    told: list[Block] = [
        *([row.remark] if row.remark else []),
        *([Grid(("amount", "cause", "why", "for example"), "rlll", tuple(
            (exact(amount), Code(cause), why, Code(where)) for amount, cause, why, where in row.causes
        ))] if row.causes else []),
    ]  # fmt: skip
    title = plural(len(row.causes), "cause") if row.causes else "What happened"
    return Item(cells, verdict, blocks(told) if told else None, title)
