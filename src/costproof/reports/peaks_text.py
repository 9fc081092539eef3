"""Peaks of live activations, for the console and for people who read Markdown."""

from __future__ import annotations

from typing import Final

from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor, Peak, Peaks
from costproof.ledger.plural import plural
from costproof.ledger.workload import counted_line
from costproof.reports.escape import code, details, markdown, table
from costproof.reports.screen import aligned, filled
from costproof.views.numbers import exact, some

HEAD: Final = ("Stage", "Call", "Part", "Graph peak", "Eager peak", "Gap", "Residual")
GAP: Final = ("Why", "Tensor", "Held by", "Bytes")
ALIVE: Final = ("Tensor", "Shape", "Type", "Made in", "Bytes")
MEANING: Final = (
    "Bytes of live activations on a CPU: inputs and outputs counted, parameters and buffers apart.\n"
    "Graph: a tensor is freed after its last reader. Eager: the module as written, whose variables hold more."
)
FORM: Final = "graph peak in symbols"
MOST_ROWS: Final = 10
"""Of what is alive at a peak, on the console; Markdown has all of it."""
_WHY: Final = {
    "held": "held, and read no more",
    "eager only": "not in the graph",
    "graph only": "in the graph alone",
    "elsewhere": "the graph has its peak elsewhere",
}


def peaks_text(found: Peaks, width: int | None = None) -> str:
    """For the console."""
    lines = [title(found), counted_line(found.target, found.workload), *MEANING.split("\n"), ""]
    lines += aligned(HEAD, [_row(c) for c in found.calls], 3, width)
    for call in found.calls:
        if call.gap:
            lines += ["", f"{name(call)}: eager less graph", *aligned(GAP, gap(call), 3, width)]
        for which, peak in _peaks(call):
            rows = alive(peak)
            lines += ["", f"{name(call)}: alive at {which}, {at(peak)}"]
            lines += aligned(ALIVE, sorted(rows, key=lambda r: -_bytes(r))[:MOST_ROWS], 4, width)
            if len(rows) > MOST_ROWS:
                lines.append(f"and {plural(len(rows) - MOST_ROWS, 'smaller one')}")
        if call.form:
            lines += ["", f"{name(call)}: {FORM}: {call.form}{where(call)}"]
        lines += [f"{name(call)}: {note}" for note in call.notes]
    return filled(lines, width)


def _peaks(call: CallPeaks) -> list[tuple[str, Peak]]:
    """Those that are known; one where both hold the same at the same place."""
    graph, eager = call.graph, call.eager
    if graph is not None and eager is not None and (alive(graph), at(graph)) == (alive(eager), at(eager)):
        return [("both peaks", eager)]
    return [(f"the {name} peak", p) for name, p in (("graph", graph), ("eager", eager)) if p is not None]


def peaks_md(found: Peaks) -> str:
    """For people."""
    lines = [f"# {markdown(title(found))}", "", markdown(counted_line(found.target, found.workload)), "", MEANING, ""]
    lines += table(HEAD, "lllrrrr", [tuple(map(markdown, _row(c))) for c in found.calls])
    for call in found.calls:
        lines += ["", f"## {markdown(name(call))}", "", *(f"- {markdown(note)}" for note in call.notes)]
        lines += [f"- {FORM}: {code(call.form)}{markdown(where(call))}"] if call.form else []
        lines += [""] if call.notes or call.form else []
        if call.gap:
            rows = [tuple(map(markdown, row)) for row in gap(call)]
            lines += ["The eager peak less the graph peak:", "", *table(GAP, "lllr", rows), ""]
        for which, peak in (("graph", call.graph), ("eager", call.eager)):
            if peak is not None:
                rows = [tuple(map(markdown, row)) for row in alive(peak)]
                lines += details(f"Alive at the {which} peak, {markdown(at(peak))}", table(ALIVE, "llllr", rows))
        lines = lines[:-1] if lines[-1] == "" else lines
    return "\n".join(lines).rstrip() + "\n"


def where(call: CallPeaks) -> str:
    """For which sizes the form of a call holds; empty where it holds for all."""
    return f", where {' and '.join(f'{margin} >= 0' for margin in call.holds)}" if call.holds else ""


def title(found: Peaks) -> str:
    """Of which model and workload."""
    return f"Peaks of {found.target.title} at {found.workload.name}"


def name(call: CallPeaks) -> str:
    """Stage, call and part."""
    return ", ".join(filter(None, (call.stage, call.invocation, call.part)))


def _row(call: CallPeaks) -> tuple[str, ...]:
    sizes = (call.graph.bytes if call.graph else None, call.eager.bytes if call.eager else None)
    return (call.stage, call.invocation, call.part, *map(exact, (*sizes, call.gap_bytes, call.residual)))


def gap(call: CallPeaks) -> list[tuple[str, ...]]:
    """Rows of :data:`GAP`."""
    return [(_WHY[p.kind], _named(p), some(p.holders, 1), exact(p.bytes)) for p in call.gap]


def _named(part: GapPart) -> str:
    return f"in {part.where or '(root)'}" if part.tensor is None else f"{_made(part.tensor)}, {_shape(part.tensor)}"


def _made(tensor: LiveTensor) -> str:
    return f"{tensor.name} of {tensor.module or '(root)'}" if tensor.operator else f"input {tensor.name}"


def _shape(tensor: LiveTensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def at(peak: Peak) -> str:
    """What runs at a peak, and where."""
    return f"at {peak.operator} in {peak.module or '(root)'}" if peak.operator else "at its inputs"


def alive(peak: Peak) -> list[tuple[str, ...]]:
    """Rows of :data:`ALIVE`, in the order in which tensors were made."""
    return [
        (t.name, _shape(t), t.dtype, t.module or "(root)" if t.operator else "(input)", exact(t.bytes))
        for t in peak.alive
    ]


def _bytes(row: tuple[str, ...]) -> int:
    return int(row[-1].replace(",", ""))
