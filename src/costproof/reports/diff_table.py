"""A diff for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.plural import plural
from costproof.reports.diff_words import MAX_ROWS, amount, apart, change, gaps, lines, percent, sentence, signed, told
from costproof.reports.screen import say, typeset
from costproof.reports.uncoloured import uncoloured
from costproof.views.describe import counted_lines

if TYPE_CHECKING:
    from rich.console import Console

    from costproof.compare.diff.types import Diff

_STYLES: Final = {"same": "green", "changed": "bold", "silent": "bold red", "incomplete": "bold yellow"}


def print_diff(console: Console, found: Diff) -> None:
    """The verdict, the sums that changed, what changed and what each change did."""

    def tell(text: str, style: str = "") -> None:
        say(console, text, style)

    tell(" → ".join(dict.fromkeys((found.base.name, found.head.name))), "bold")
    for line in counted_lines(found.base, found.head):
        tell(line)
    every = list(lines(found))
    if every:
        rows = []
        for x in every[:MAX_ROWS]:
            q = x.quantity
            numbers = (amount(q.base, x.metric), amount(q.head, x.metric), signed(q.delta, x.metric))
            rows.append((x.stage, EVERY_METRIC[x.metric].title, *numbers, percent(q.delta, q.base)))
        typeset(console, ("Stage", "Metric", "Base", "Head", "Δ", "Δ %"), "llrrrr", rows, keys=2)
    tell(sentence(found), _STYLES[found.verdict])
    for reason in gaps(found)[1:]:
        tell("  " + reason, "yellow")
    for what, does in told(found):
        tell(f"  {what} {does}")
    for reason in apart(found):
        tell("  " + reason)
    known = {c.key for p in found.players for c in found.changes if c.key in p.keys}
    for one in found.changes:
        if one.key not in known:
            tell(f"  {one.key} {change(one)}")
    if len(every) > MAX_ROWS:
        tell(f"{plural(len(every) - MAX_ROWS, 'more sum')} changed; -f md and -f json have them.")


def diff_text(found: Diff, width: int | None = None) -> str:
    """The same without colour, as a file holds it."""
    return uncoloured(lambda console: print_diff(console, found), width)
