"""Report peaks of live activations of each call, by graph and by eager module, with the tensors alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE
from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor, Peak, Peaks, by_stage
from costproof.ledger.plural import plural
from costproof.ledger.workload import counted_line
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Details,
    Document,
    DocumentSection,
    Form,
    Items,
    Markup,
    Note,
    Number,
    Strong,
    Table,
    conventions_foot,
    subject_lines,
)
from costproof.reports.html.document import Html, h, join_markup
from costproof.reports.html.printer import HtmlPrinter, swatch
from costproof.views.numbers import exact, first_names, human

HEAD: Final = ("Stage", "Call", "Part", "Graph peak", "Eager peak", "Gap", "Residual")
GAP: Final = ("Why", "Tensor", "Held by", "Bytes")
ALIVE: Final = ("Tensor", "Shape", "Type", "Made in", "Bytes")
MEANING: Final = (
    "Bytes of live activations on a CPU: inputs and outputs counted, parameters and buffers apart.",
    "Graph: a tensor is freed after its last reader. Eager: the module as written, whose variables hold more.",
)
FORM: Final = "graph peak in symbols"
FORMULA: Final = "graph peak by formula"
MOST_ROWS: Final = 10
"""Maximum number of live tensors in plain text; Markdown has all."""
_WHY: Final = {
    "held": "held, and read no more",
    "eager only": "not in the graph",
    "graph only": "in the graph alone",
    "elsewhere": "the graph has its peak elsewhere",
}
MOST: Final = 15
"""Maximum number of tensors at a peak on a page."""
_WIDTH: Final = 1200
_HEIGHT: Final = 200


def document(found: Peaks, form: Form) -> Document:
    """Return the report: the peaks of all calls, why eager and graph peaks differ, and the tensors alive at each."""
    title = f"Peaks of {found.target.title} at {found.workload.name}"
    if form in ("html", "cell"):
        body = list(filter(None, [section(found.calls)]))
        foot = conventions_foot(found.conventions, found.environment)
        verdict = {EXIT_FINDINGS: "unexplained", EXIT_INCOMPLETE: "incomplete"}.get(found.exit_code, "")
        about = subject_lines(found.target, found.workload, form)
        return Document(title, body, verdict, _sentence(found), about, foot)
    about = [counted_line(found.target, found.workload)]
    overview = Table(HEAD, "lllrrrr", [_row(c) for c in found.calls])
    if form == "text":
        parts = [block for call in found.calls for block in _call_text(call)]
        return Document(title, [overview, *parts], about=[*about, *MEANING])
    sections = [DocumentSection(call_name(call), list(_call_md(call))) for call in found.calls]
    return Document(title, [" ".join(MEANING), overview, *sections], about=about)


def _call_text(call: CallPeaks) -> Iterator[Block]:
    if call.gap:
        yield Table(GAP, "lllr", gap_rows(call), title=f"{call_name(call)}: eager less graph")
    for which, peak in _peaks(call):
        largest = [cells for cells, _ in _by_size(peak)]
        title = f"{call_name(call)}: alive at {which}, {peak_place(peak)}"
        yield Table(ALIVE, "llllr", largest, title=title, most=MOST_ROWS, noun="smaller tensor", rest="-f json")
    if call.form:
        yield f"{call_name(call)}: {FORM}: {call.form}{condition_text(call)}"
    yield from (f"{call_name(call)}: {note}" for note in _notes(call))


def _call_md(call: CallPeaks) -> Iterator[Block]:
    form = [(f"{FORM}: ", Code(call.form), condition_text(call))] if call.form else []
    notes = tuple(_notes(call))
    if notes or form:
        yield Items((*notes, *form))
    if call.gap:
        yield Table(GAP, "lllr", gap_rows(call), title="The eager peak less the graph peak:")
    for which, peak in (("graph", call.graph), ("eager", call.eager)):
        if peak is not None:
            yield Details(f"Alive at the {which} peak, {peak_place(peak)}", [Table(ALIVE, "llllr", alive_rows(peak))])


def _notes(call: CallPeaks) -> Iterator[str]:
    """Yield sentences that compare the formula's peak with the graph's, list other memory, and add notes."""
    if call.formula is not None and call.graph is not None:
        delta = call.formula - call.graph.bytes
        yield f"{FORMULA}: {exact(call.formula)}, " + (f"{exact(delta)} more than the graph has" if delta else "equal")
    if call.gathered_bytes is not None:
        yield f"gathered parameters and their buffers are held besides: at most {exact(call.gathered_bytes)} B"
    yield from call.notes


def _by_size(peak: Peak) -> list[tuple[tuple[str, ...], int]]:
    """Return the tensors alive at a peak as rows of :data:`ALIVE` with their bytes, largest first."""
    sizes = [t.bytes for t in peak.alive]
    return sorted(zip(alive_rows(peak), sizes, strict=True), key=lambda pair: -pair[1])


def _peaks(call: CallPeaks) -> list[tuple[str, Peak]]:
    """Return (name, peak) of the known peaks; a single entry if graph and eager peak are equal."""
    graph, eager = call.graph, call.eager
    if (
        graph is not None
        and eager is not None
        and (alive_rows(graph), peak_place(graph)) == (alive_rows(eager), peak_place(eager))
    ):
        return [("both peaks", eager)]
    return [(f"the {name} peak", p) for name, p in (("graph", graph), ("eager", eager)) if p is not None]


def condition_text(call: CallPeaks) -> str:
    """Return the condition on sizes under which the symbolic peak holds; empty if it always does."""
    return f", where {' and '.join(f'{margin} >= 0' for margin in call.holds)}" if call.holds else ""


def call_name(call: CallPeaks) -> str:
    """Return the name of a call: its stage, invocation and part."""
    return ", ".join(filter(None, (call.stage, call.invocation, call.part)))


def _row(call: CallPeaks) -> tuple[str, ...]:
    sizes = (call.graph.bytes if call.graph else None, call.eager.bytes if call.eager else None)
    return (call.stage, call.invocation, call.part, *map(exact, (*sizes, call.gap_bytes, call.residual)))


def gap_rows(call: CallPeaks) -> list[tuple[str, ...]]:
    """Return the rows of the table :data:`GAP`: the causes of the difference between eager and graph peak."""
    return [(_WHY[p.kind], _gap_label(p), first_names(p.holders, 1), exact(p.bytes)) for p in call.gap]


def _gap_label(part: GapPart) -> str:
    return (
        f"in {part.where or '(root)'}"
        if part.tensor is None
        else f"{_tensor_label(part.tensor)}, {_shape(part.tensor)}"
    )


def _tensor_label(tensor: LiveTensor) -> str:
    return f"{tensor.name} of {tensor.module or '(root)'}" if tensor.operator else f"input {tensor.name}"


def _shape(tensor: LiveTensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def peak_place(peak: Peak) -> str:
    """Return the operator that runs at a peak, and its module."""
    return f"at {peak.operator} in {peak.module or '(root)'}" if peak.operator else "at its inputs"


def alive_rows(peak: Peak) -> list[tuple[str, ...]]:
    """Return the rows of the table :data:`ALIVE`, in the order in which the tensors were allocated."""
    return [
        (t.name, _shape(t), t.dtype, t.module or "(root)" if t.operator else "(input)", exact(t.bytes))
        for t in peak.alive
    ]


def _sentence(found: Peaks) -> str:
    known = {p.bytes: call for call in found.calls for p in (call.graph, call.eager) if p is not None}
    lacking = sum(call.graph is None or call.eager is None for call in found.calls)
    told = []
    if known:
        most = max(known)
        told.append(f"The largest peak is {exact(most)} bytes ({human(most, 'B')}), of {call_name(known[most])}.")
    told += [f"Peaks of {lacking} of {plural(len(found.calls), 'call')} are not known."] if lacking else []
    return " ".join(told) or "Nothing is called at this workload."


def section(calls: Sequence[CallPeaks]) -> DocumentSection | None:
    """Return the section on peaks of a page, with the call of the highest peak unfolded; ``None`` without peaks."""
    if not calls:
        return None
    largest = max(calls, key=lambda c: max((p.bytes for p in (c.graph, c.eager) if p is not None), default=-1))
    rows = [(s.stage, _bytes(s.graph_peak_bytes), _bytes(s.eager_peak_bytes)) for s in by_stage(calls)]
    others = [c for c in calls if c is not largest]
    return DocumentSection(
        "Peak memory",
        [
            *map(Note, MEANING),
            Table(("Stage", "Graph peak", "Eager peak"), "lr", rows),
            Markup(h("h3", call_name(largest))),
            _call(largest),
            *(Details(call_name(call), [_call(call)]) for call in others),
        ],
        id="memory",
    )


def _bytes(size: int | None) -> Cell:
    return "not known" if size is None else Number(size, f"{human(size, 'B')}, {exact(size)}")


def _call(call: CallPeaks) -> Markup:
    blocks: list[Block] = [*map(Note, _notes(call))]
    blocks += [(f"{FORM}: ", Code(call.form), condition_text(call))] if call.form else []
    blocks += [Markup(_curves(call) or "")]
    blocks += [_alive("as the module is written", call.eager)] if call.eager is not None else []
    if call.graph is not None:
        blocks.append(Details("Alive at the graph peak", [_alive("by the graph", call.graph)]))
    blocks += [Details("Eager peak less graph peak", [Table(GAP, "lllr", gap_rows(call))])] if call.gap else []
    return Markup(h("div", HtmlPrinter().blocks(blocks), class_="peaks"))


def _curves(call: CallPeaks) -> Html | None:
    """Return the memory curves of graph and eager module in one chart, each scaled to the full width."""
    ways = [(w, p) for w, p in (("as written", call.eager), ("graph", call.graph)) if p is not None and p.curve]
    if not ways:
        return None
    top = max(p.bytes for _, p in ways) or 1
    said = "; ".join(f"{way}: {exact(p.bytes)} bytes, {peak_place(p)}" for way, p in ways)
    drawn = h(
        "svg",
        (h("g", _bars(peak, top), class_=f"s{1 - i}") for i, (_, peak) in enumerate(ways)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"Bytes alive over the execution. Peaks, {said}",
    )
    legend = join_markup(*(piece for i, (way, p) in enumerate(ways) for piece in
                      ("; " if i else "", swatch(1 - i), f"{way}, {exact(p.events)} events")))  # fmt: skip
    about = h("p", f"0 to {human(top, 'B')}, from the inputs to the results: ", legend, class_="note")
    return h("div", drawn, about, class_="alive")


def _bars(peak: Peak, top: int) -> Iterator[Html]:
    """Yield a chart bar for each section of a memory curve; its tooltip has the exact bytes."""
    many = len(peak.curve)
    for i, moment in enumerate(peak.curve):
        left, right = (_WIDTH * n // many for n in (i, i + 1))
        height = _HEIGHT * moment.bytes // top
        inside = f", in {moment.module}" if moment.module else ""
        hint = h("title", f"event {exact(moment.event + 1)}: {exact(moment.bytes)} bytes{inside}")
        place = {"x": left, "y": _HEIGHT - height, "width": right - left, "height": height}
        yield h("rect", hint, **place)


def _alive(way: str, peak: Peak) -> Table:
    """Return a table of the largest tensors at a peak, the sum of the others, and the peak itself."""
    rows = _by_size(peak)
    shown: list[tuple[Cell, ...]] = [(Strong(cells[0]), *cells[1:]) for cells, _ in rows[:MOST]]
    if rest := [size for _, size in rows[MOST:]]:
        shown.append((plural(len(rest), "smaller tensor"), "", "", "", exact(sum(rest))))
    shown.append((Strong("together"), "", "", "", Strong(exact(peak.bytes))))
    return Table(ALIVE, "llllr", shown, title=f"Alive at the peak {way}, {peak_place(peak)}:")
