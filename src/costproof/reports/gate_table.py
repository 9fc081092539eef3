"""A gate for a terminal."""

from __future__ import annotations

from costproof.compare.gate.types import Gate
from costproof.ledger.plural import plural
from costproof.reports.escape import visible
from costproof.reports.gate_words import HEAD, LEFT, changes, idle, lines, reasons, sentence, whys
from costproof.reports.screen import aligned, filled
from costproof.views.describe import counted_lines

_ROWS = 20


def gate_text(found: Gate, width: int | None = None) -> str:
    """The verdict, the checks that did not simply pass, and allowances to take out."""
    shown = lines(found, "unknown", "over", "allowed")
    rows = [tuple(map(visible, x.cells)) for x in shown[:_ROWS]]
    text = [sentence(found), *counted_lines(found.base, found.head)]
    text += [f"  {why}" for why in reasons(found)[1:_ROWS]]
    if rows:
        text += ["", *aligned(HEAD, rows, LEFT, width, keys=2), ""]
        text += [f"{places}: {why}" for places, why in whys(shown[:_ROWS])]
    more = len(shown) - len(rows)
    text += [f"{plural(more, 'more check')} did not simply pass; -f json has them."] if more > 0 else []
    text += [line for line in (changes(found), *(f"Note: {note}." for note in idle(found))) if line]
    return filled(text, width)
