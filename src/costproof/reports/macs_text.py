"""fvcore's convention on the console, and the words that both texts of it share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from costproof.reports.escape import visible
from costproof.reports.grid import grid
from costproof.reports.numbers import exact, human
from costproof.reports.verdicts import GOOD

if TYPE_CHECKING:
    from rich.console import Console

    from costproof.reports.macs import Macs, StageMacs, Sums

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


def heads() -> list[str]:
    """Of the columns that :func:`cells` fills."""
    return [f"{title} {name}" for title in ("MACs", "Activations") for name in COLUMNS.values()]


def cells(macs: Sums, activations: Sums, number: Callable[[int | None], str] = exact) -> list[str]:
    """MACs and activations of the sources that the table shows."""
    return [number(sums.get(source)) for sums in (macs, activations) for source in COLUMNS]


def print_macs(console: Console, data: Macs) -> None:
    """Typeset the table."""
    from rich.text import Text

    table = grid("Stage", ["Params", *heads()], "Status")
    for s in data.stages:
        style = "" if s.status in GOOD else "yellow"
        numbers = cells(s.macs, s.activations)
        table.add_row(Text(visible(s.id)), exact(s.params), *numbers, Text(s.status, style=style))
    table.add_section()
    table.add_row(
        "total", exact(data.params), *cells(data.totals["macs"], data.totals["activations"]), "", style="bold"
    )
    console.print()
    console.print(Text(f"Convention {data.convention}: {LOUD}", style="bold yellow"), soft_wrap=True)
    console.print(table)
    for s in data.stages:
        if s.left_out:
            console.print(Text(visible(left_out(s)) + "."), soft_wrap=True)
