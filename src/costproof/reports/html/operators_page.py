"""The page of the operators of a stage: their picture, and a table of its boxes."""

from __future__ import annotations

from dataclasses import replace

from costproof.reports.graph.operators import Operator
from costproof.reports.graph.picture import GraphView
from costproof.reports.graph.svg import inline
from costproof.reports.html.document import Html, h, page
from costproof.reports.html.parts import MOST, Item, head, number, sifted
from costproof.views.numbers import exact, human, share

_HEAD = ("Operator", "×", "Module", "Returns", "FLOP", "Share", "vector FLOP")


def operators_page(view: GraphView) -> str:
    """The file. A box leads to its row, and a row to its box."""
    title = view.title[:1].upper() + view.title[1:]
    linked = replace(view, nodes=tuple(replace(n, link=f"#of-{n.id}") for n in view.nodes), notes=())
    drawn = Html(inline(linked))
    framed = h("div", drawn, class_="graph", tabindex=0, role="region", aria_label="Operators, scrollable")
    items = [_item(n) for n in view.nodes if isinstance(n, Operator)]
    rows = sifted(_HEAD, items, name="box", align="lrllrrr", most=MOST, file="the text of explain --graph")
    return page(
        title,
        head(title, "", " ".join(f"{note}." for note in view.notes), ()),
        (
            h("section", h("h2", "Picture"), h("p", id="zoom", class_="tools"), framed),
            h("section", h("h2", "Boxes"), rows, id="boxes"),
        ),
        h("footer"),
    )


def _item(n: Operator) -> Item:
    vector = number(n.vector, human(n.vector, "FLOP"))
    name = h("a", n.class_name, id=f"of-{n.id}", href=f"#{n.id}")
    cells = (name, exact(n.calls), h("code", n.pattern), ", ".join(n.outputs), number(n.flops, human(n.flops, "FLOP")))
    return Item((*cells, share(n.flops, n.whole), vector), "")
