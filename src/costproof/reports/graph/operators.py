"""Draw the operators of an exported stage: boxes are operators, arrows are data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from costproof.ledger.callgraph import OperatorLine, OperatorListing
from costproof.ledger.errors import BadInput
from costproof.ledger.node import exact_sum
from costproof.ledger.plural import plural
from costproof.reports.document import Code, Document, DocumentSection, Markup, Number, Table, TableRow
from costproof.reports.escape import plain
from costproof.reports.graph.picture import Edge, GraphView, Node
from costproof.reports.graph.svg import inline
from costproof.reports.html.document import Html, h, join_markup
from costproof.reports.listing import form, layers
from costproof.views.module_tree import pattern
from costproof.views.numbers import exact, first_names, human, share

MOST: Final = 2_000
"""Maximum number of boxes: larger pictures are unreadable, and their layout takes minutes."""
_SHAPES: Final = 2
"""Maximum number of tensors whose shapes a box names; the tooltip has all."""
_LEGEND: Final = (
    "a box: operator, module, what it returns, FLOPs with their share · × N: the same in N equal layers"
    " · arrows: data · orange: share of the FLOPs"
)


@dataclass(frozen=True, slots=True)
class Operator(Node):
    """A box in a picture of operators, for one operator or for the same operator of several equal layers."""

    vector: int | None = 0
    """Vector FLOPs; ``None`` if unknown."""
    labels: tuple[str, ...] = ()
    """Names of the nodes in the exported graph."""
    why: str = ""
    """The reason why the costs are unknown; empty if they are known."""

    @property
    def look(self) -> str:
        """Return ``for`` if the operator repeats, else an empty text."""
        return "for" if self.loops else ""

    @property
    def figures(self) -> str:
        """Return one line with the operator's output shapes, FLOPs, vector FLOPs and bytes."""
        return " · ".join([first_names(self.outputs, _SHAPES), *self.work, *self._vector, *self.traffic])

    @property
    def tooltip(self) -> list[str]:
        """Return all known facts about the operator, one per line."""
        return [
            plain(f"{self.class_name} @ {self.pattern}"),
            plain(first_names([f"%{x}" for x in self.labels], 12)),
            f"FLOP: {exact(self.flops)}" + (f", {self.share} of {exact(self.whole)}" if self.share else ""),
            f"vector FLOP: {exact(self.vector)}",
            f"bytes moved: {exact(self.moved)}",
            *filter(None, [plain(self.why)]),
            *(f"out: {plain(t)}" for t in self.outputs),
        ]

    @property
    def _vector(self) -> list[str]:
        return [f"{human(self.vector, 'FLOP')} vector"] if self.vector else []


def operator_view(found: Sequence[OperatorListing], *, unrolled: bool = False) -> GraphView:
    """Return the picture of some listed operators, each with its share of the picture's FLOPs.

    Args:
        unrolled: draw every operator. Otherwise equal layers are drawn once, and an operator that does no work, such as
            a view, is a part of an arrow.

    Raises:
        BadInput: more operators than can be drawn.
    """
    whole = exact_sum(x.flops for one in found for x in one.lines)
    nodes: list[Node] = []
    arrows: list[Edge] = []
    notes: list[str] = []
    for one in found:
        boxes = list(_boxes(one.lines, unrolled))
        if len(nodes) + len(boxes) > MOST:
            less = "name a module with --module" + (", or leave out --unrolled" if unrolled else "")
            raise BadInput("too many operators for a picture", where=one.stage, expected=f"{MOST:,} at most", fix=less)
        home = {i: f"n{len(nodes) + k}" for k, box in enumerate(boxes) for i in box}
        nodes += [_node(home[box[0]], [one.lines[i] for i in box], whole) for box in boxes]
        fed = Counter((home[a], home[b]) for a, b in _feeds(one.lines, home.keys()))
        arrows += [Edge(*ends, count) for ends, count in fed.items()]
        notes.append(_note(one, len(home)))
    return GraphView(
        title="operators of " + ", ".join(dict.fromkeys(one.stage for one in found)),
        nodes=tuple(nodes),
        calls=tuple(arrows),
        flow=(),
        notes=tuple(notes),
        legend=_LEGEND,
        down=True,
    )


def _boxes(lines: Sequence[OperatorLine], unrolled: bool) -> Iterator[tuple[int, ...]]:
    """Yield, for each box, the indices of the operators that it stands for, ordered by the first of them."""
    alike: dict[object, list[range]] = {}
    at = 0
    for path, some_ in layers(lines):
        alone = unrolled or not path
        alike.setdefault(at if alone else form(path, some_), []).append(range(at, at + len(some_)))
        at += len(some_)
    for group in alike.values():
        for places in zip(*group, strict=True):
            line = lines[places[0]]
            if line.returns and (unrolled or line.works):  # checks return nothing
                yield places


def _feeds(lines: Sequence[OperatorLine], drawn: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield (producer, consumer) pairs of drawn operators, connected also through operators that are not drawn."""
    made: dict[str, tuple[int, ...]] = {}
    for i, line in enumerate(lines):
        sources = tuple(dict.fromkeys(place for name in line.reads for place in made.get(name, ())))
        if i in drawn:
            yield from ((place, i) for place in sources)
            sources = (i,)
        made |= dict.fromkeys(line.makes, sources)


def _node(name: str, lines: Sequence[OperatorLine], whole: int | None) -> Operator:
    first = lines[0]
    modules = tuple(x.module or "(root)" for x in lines)
    return Operator(
        id=name,
        class_name=first.operator,
        pattern=pattern(modules),
        instances=modules,
        loops=(f"× {len(lines)}",) if len(lines) > 1 else (),
        calls=len(lines),
        not_executed=0,
        depth=0,
        flops=exact_sum(x.flops for x in lines),
        moved=sum(x.bytes for x in lines),
        outputs=first.returns,
        whole=whole,
        vector=exact_sum(x.vector_flops for x in lines),
        labels=tuple(x.label for x in lines),
        why=first.why,
    )


def _note(one: OperatorListing, drawn: int) -> str:
    many = sum(1 for x in one.lines if x.returns)
    rest = f", of which {many - drawn:,} that do no work (views, casts) are left out" if many > drawn else ""
    work = exact(exact_sum(x.flops for x in one.lines))
    return f"{one.stage}[{one.invocation}], export {one.part}: {plural(many, 'operator')}{rest}; {work} FLOP"


def operators_page(view: GraphView) -> Document:
    """Return the page of an operator graph: the picture, and a table of its boxes, linked with each other."""
    linked = replace(view, nodes=tuple(replace(n, link=f"#of-{n.id}") for n in view.nodes), notes=())
    label = "Operators, scrollable"
    framed = h("div", Html(inline(linked)), class_="graph", tabindex=0, role="region", aria_label=label)
    picture = Markup(join_markup(h("p", id="zoom", class_="tools"), framed))
    rows = []
    for n in view.nodes:
        if isinstance(n, Operator):
            name = h("a", n.class_name, id=f"of-{n.id}", href=f"#{n.id}")
            flops, vector = (Number(v, human(v, "FLOP")) for v in (n.flops, n.vector))
            cells = (
                name,
                exact(n.calls),
                Code(n.pattern),
                ", ".join(n.outputs),
                flops,
                share(n.flops, n.whole),
                vector,
            )
            rows.append(TableRow(cells))
    head = ("Operator", "×", "Module", "Returns", "FLOP", "Share", "vector FLOP")
    boxes = Table(head, "lrllrrr", rows, noun="box", rest="the text of explain --graph", searchable=True)
    body = [DocumentSection("Picture", [picture]), DocumentSection("Boxes", [boxes], id="boxes")]
    return Document(view.title[:1].upper() + view.title[1:], body, "", " ".join(f"{note}." for note in view.notes))
