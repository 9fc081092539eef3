"""A diff for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.ledger.metrics import EVERY_METRIC
from costproof.reports.diff_words import MAX_ROWS, amount, apart, change, lines, percent, sentence, signed, told
from costproof.reports.escape import visible
from costproof.reports.uncoloured import uncoloured

if TYPE_CHECKING:
    from rich.console import Console

    from costproof.compare.diff.types import Diff

_STYLES: Final = {"same": "green", "changed": "bold", "incomplete": "bold yellow"}


def print_diff(console: Console, found: Diff) -> None:
    """The verdict, the sums that changed, what changed and what each change did."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    def say(text: str, style: str = "") -> None:
        console.print(Text(visible(text), style=style), soft_wrap=True)

    say(" → ".join(dict.fromkeys((found.base.name, found.head.name))), "bold")
    for line in dict.fromkeys((found.base.counted, found.head.counted)):
        say(line)
    every = list(lines(found))
    if every:
        grid = Table(box=SIMPLE_HEAD, pad_edge=False)
        for title, left in (
            ("Stage", True),
            ("Metric", True),
            ("Base", False),
            ("Head", False),
            ("Δ", False),
            ("Δ %", False),
        ):
            grid.add_column(title, justify="left" if left else "right", no_wrap=True)
        for x in every[:MAX_ROWS]:
            q = x.quantity
            numbers = (amount(q.base, x.metric), amount(q.head, x.metric), signed(q.delta, x.metric))
            grid.add_row(Text(visible(x.stage)), EVERY_METRIC[x.metric].title, *numbers, percent(q.delta, q.base))
        console.print(grid)
    say(sentence(found), _STYLES[found.verdict])
    for reason in found.incomplete[1:]:
        say("  " + reason, "yellow")
    for what, does in told(found):
        say(f"  {what} {does}")
    for reason in apart(found):
        say("  " + reason)
    known = {c.key for p in found.players for c in found.changes if c.key in p.keys}
    for one in found.changes:
        if one.key not in known:
            say(f"  {one.key} {change(one)}")
    if len(every) > MAX_ROWS:
        say(f"{len(every) - MAX_ROWS} more sums changed; -f md and -f json have them.")


def diff_text(found: Diff, width: int = 200) -> str:
    """The same without colour, as a file holds it."""
    return uncoloured(lambda console: print_diff(console, found), width)
