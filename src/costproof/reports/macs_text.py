"""fvcore's convention on the console, and the words that both texts of it share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.reports.escape import visible
from costproof.reports.numbers import exact, human
from costproof.reports.verdicts import GOOD

if TYPE_CHECKING:
    from rich.console import Console

    from costproof.reports.macs import Macs, StageMacs

COLUMNS: Final = {"isolated": "isolated", "dynamic": "extracted"}
"""Sources that the table shows, by the names of the mode: a stage alone, and its part of the whole run."""

LOUD: Final = (
    "These are MACs in the convention of fvcore 0.1.5.post20221221, which calls them flops. They are not FLOPs: a"
    " multiply-accumulate is 1, a norm is 5 per element, fused attention and grouped experts are 0."
)


def left_out(stage: StageMacs) -> str:
    """``sam leaves out attention 441.19 GFLOP``."""
    parts = ", ".join(f"{kind} {human(flops, 'FLOP')}" for kind, flops in stage.left_out.items())
    return f"{stage.id} leaves out {parts}"


def print_macs(console: Console, data: Macs) -> None:
    """Typeset the table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    grid.add_column("Stage", no_wrap=True)
    grid.add_column("Params", justify="right", no_wrap=True)
    for title in ("MACs", "Activations"):
        for name in COLUMNS.values():
            grid.add_column(f"{title} {name}", justify="right", no_wrap=True)
    grid.add_column("Status", no_wrap=True)
    for s in data.stages:
        cells = [exact(sums.get(source)) for sums in (s.macs, s.activations) for source in COLUMNS]
        style = "" if s.status in GOOD else "yellow"
        grid.add_row(Text(visible(s.id)), exact(s.params), *cells, Text(s.status, style=style))
    grid.add_section()
    sums = [exact(data.totals[t].get(source)) for t in ("macs", "activations") for source in COLUMNS]
    grid.add_row("total", exact(data.params), *sums, "", style="bold")
    console.print()
    console.print(Text(f"Convention {data.convention}: {LOUD}", style="bold yellow"), soft_wrap=True)
    console.print(grid)
    for s in data.stages:
        if s.left_out:
            console.print(Text(visible(left_out(s)) + "."), soft_wrap=True)
