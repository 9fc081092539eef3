"""The peak of live activations of every call: by its graph and as the module is written, and what is alive then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costproof.ledger.peaks import CallPeaks, Peak
from costproof.ledger.plural import plural
from costproof.reports.escape import visible
from costproof.reports.plots.bars import Bar, Piece, bars
from costproof.views.numbers import human

_NAMED: Final = 6
"""Tensors of a peak that have a piece of their own."""
_LOOKS: Final = {
    "by the graph": ("#2b5b84", "#4477aa", "#6a94bf", "#8fb0d0", "#b3cbe1", "#d3e1ee"),
    "as written": ("#a8434d", "#cc5966", "#ee6677", "#f28c99", "#f6b0b8", "#fad3d8"),
}
_REST: Final = "#e4e4e4"


def draw(title: str, calls: Sequence[CallPeaks], kind: str) -> bytes:
    """The picture: two bars a call, their pieces the largest tensors that are alive."""
    rows = []
    for call in calls:
        part = f" {call.part}" if call.part else ""
        name = visible(f"{call.stage}[{call.invocation}]{part}")
        for number, (way, peak) in enumerate((("by the graph", call.graph), ("as written", call.eager))):
            rows.append(_bar(f"{name} {way}" if not number else way, way, peak, below=bool(number)))
    legend = [(way, colours[1], False) for way, colours in _LOOKS.items()]
    legend.append(("what is smaller", _REST, False))
    return bars(title, rows, legend, "bytes that are alive at the peak; parameters not among them", kind, unit="B")


def _bar(name: str, way: str, peak: Peak | None, *, below: bool) -> Bar:
    if peak is None:
        return Bar(name, (), "not known", below)
    largest = sorted(peak.alive, key=lambda t: -t.bytes)[:_NAMED]
    pieces = [
        Piece(float(t.bytes), _LOOKS[way][i], visible(f"{t.name} {human(t.bytes, 'B', places=1)}"))
        for i, t in enumerate(largest)
    ]
    rest = len(peak.alive) - len(largest)
    left = float(peak.bytes) - sum(p.size for p in pieces)
    pieces += [Piece(left, _REST, f"{plural(rest, 'more tensor')}")] if rest else []
    return Bar(name, tuple(pieces), human(peak.bytes, "B"), below)
