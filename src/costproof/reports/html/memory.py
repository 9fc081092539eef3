"""Peaks of live activations, as a page and a part of one: what is alive over the execution, and what is at the peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from costproof.ledger.peaks import CallPeaks, Moment, Peak, Peaks, by_stage
from costproof.ledger.plural import plural
from costproof.reports.html.document import Html, h, joined, page, table
from costproof.reports.html.printer import about, folded, foot, head, number, swatch
from costproof.reports.peaks_text import ALIVE, FORM, GAP, MEANING, alive, at, gap, name, title, where
from costproof.views.numbers import exact, human

MOST: Final = 15
"""Tensors of a peak that are named."""
_WIDTH: Final = 1200
_HEIGHT: Final = 200


def peaks_page(found: Peaks) -> str:
    """The file."""
    made = title(found)
    top = head(made, "incomplete" if found.exit_code else "", _sentence(found), [about(found.target, found.workload)])
    return page(made, top, [peaks_part(found.calls)], foot(found.conventions, found.environment))


def _sentence(found: Peaks) -> str:
    known = {p.bytes: call for call in found.calls for p in (call.graph, call.eager) if p is not None}
    lacking = sum(call.graph is None or call.eager is None for call in found.calls)
    told = [f"The largest peak is {exact(max(known))} bytes ({human(max(known), 'B')}), of {name(known[max(known)])}."
            ] if known else []  # fmt: skip
    told += [f"Peaks of {lacking} of {plural(len(found.calls), 'call')} are not known."] if lacking else []
    return " ".join(told) or "Nothing is called at this workload."


def peaks_part(calls: Sequence[CallPeaks]) -> Html | None:
    """The section; ``None`` where nobody asked for peaks. The call with the highest peak is open."""
    if not calls:
        return None
    largest = max(calls, key=lambda c: max((p.bytes for p in (c.graph, c.eager) if p is not None), default=-1))
    rows = [(s.stage, _bytes(s.graph_peak_bytes), _bytes(s.eager_peak_bytes)) for s in by_stage(calls)]
    others = [c for c in calls if c is not largest]
    return h(
        "section",
        h("h2", "Peak memory"),
        (h("p", line, class_="note") for line in MEANING.split("\n")),
        table(("Stage", "Graph peak", "Eager peak"), rows),
        h("h3", name(largest)),
        _call(largest),
        (folded(name(call), _call(call)) for call in others),
        id="memory",
    )


def _bytes(size: int | None) -> str:
    return "not known" if size is None else number(size, f"{human(size, 'B')}, {exact(size)}")


def _call(call: CallPeaks) -> Html:
    return h(
        "div",
        (h("p", note, class_="note") for note in call.notes),
        h("p", f"{FORM}: ", h("code", call.form), where(call)) if call.form else None,
        _curves(call),
        _alive("as the module is written", call.eager) if call.eager is not None else None,
        folded("Alive at the graph peak", _alive("by the graph", call.graph)) if call.graph is not None else None,
        folded("Eager peak less graph peak", table(GAP, gap(call), align="lllr")) if call.gap else None,
        class_="peaks",
    )


def _curves(call: CallPeaks) -> Html | None:
    """Both curves over each other, each from its first event to its last."""
    ways = [(w, p) for w, p in (("as written", call.eager), ("graph", call.graph)) if p is not None and p.curve]
    if not ways:
        return None
    top = max(p.bytes for _, p in ways) or 1
    said = "; ".join(f"{way}: {exact(p.bytes)} bytes, {at(p)}" for way, p in ways)
    drawn = h(
        "svg",
        (h("g", _bars(peak, top), class_=f"s{1 - i}") for i, (_, peak) in enumerate(ways)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"Bytes alive over the execution. Peaks, {said}",
    )
    legend = joined(*(piece for i, (way, p) in enumerate(ways) for piece in
                      ("; " if i else "", swatch(1 - i), f"{way}, {exact(p.events)} events")))  # fmt: skip
    about = h("p", f"0 to {human(top, 'B')}, from the inputs to the results: ", legend, class_="note")
    return h("div", drawn, about, class_="alive")


def _bars(peak: Peak, top: int) -> Iterator[Html]:
    """A bar for each stretch, whose title has the exact number."""
    many = len(peak.curve)
    for i, moment in enumerate(peak.curve):
        left, right = (_WIDTH * n // many for n in (i, i + 1))
        height = _HEIGHT * moment.bytes // top
        hint = h("title", f"event {exact(moment.event + 1)}: {_said(moment)}")
        place = {"x": left, "y": _HEIGHT - height, "width": right - left, "height": height}
        yield h("rect", hint, **place)


def _said(moment: Moment) -> str:
    return f"{exact(moment.bytes)} bytes" + (f", in {moment.module}" if moment.module else "")


def _alive(way: str, peak: Peak) -> Html:
    """The largest tensors, the others together, and the peak as their sum."""
    rows = sorted(zip(alive(peak), peak.alive, strict=True), key=lambda pair: -pair[1].bytes)
    shown: list[tuple[str, ...]] = [(h("b", cells[0]), *cells[1:]) for cells, _ in rows[:MOST]]
    if rest := [t.bytes for _, t in rows[MOST:]]:
        shown.append((plural(len(rest), "smaller tensor"), "", "", "", exact(sum(rest))))
    shown.append((h("b", "together"), "", "", "", h("b", exact(peak.bytes))))
    return joined(h("p", f"Alive at the peak {way}, {at(peak)}:"), table(ALIVE, shown, align="llllr"))
