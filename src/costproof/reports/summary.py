"""The table that ``costproof report`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Final

from costproof.compare.verdict import next_step
from costproof.ledger.sources import ALL_SOURCES
from costproof.reports.describe import model_line, workload_line
from costproof.reports.escape import visible
from costproof.reports.macs import Macs, counted, macs
from costproof.reports.macs_text import print_macs
from costproof.reports.numbers import bounded, exact, human
from costproof.reports.verdicts import GOOD, open_findings, stage_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from costproof.compare.findings import Discrepancy
    from costproof.reports.quantities import Costs
    from costproof.reports.report import Report
    from costproof.reports.static_compute import StageCompute

PLAIN_WIDTH: Final = 200
"""Columns that the table may take where there is no terminal to ask."""
_MAX_OPEN: Final = 10
_STYLES: Final = {"exact": "green", "explained": "green", "unexplained": "bold red", "unsupported": "bold yellow"}


@dataclass(frozen=True, slots=True)
class Line:
    """One row: a stage, or the total."""

    stage: str
    params: str
    params_exact: str
    flops: str
    by_source: tuple[int | None, ...]
    given: tuple[bool, ...]
    status: str


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the console shows, before it is typeset."""

    title: str
    model: str
    sources: tuple[str, ...]
    lines: tuple[Line, ...]
    verdict: str
    sentence: str
    open: tuple[str, ...]
    not_counted: tuple[str, ...]
    macs: Macs | None = None
    """The table in another tool's convention, where the capture has one."""


def summary(report: Report) -> Summary:
    """The rows of the table and the sentences around it."""
    static, compared = report.figures, report.discrepancy
    sources = tuple(s for s in ALL_SOURCES if s in report.capture.by_source)
    lines = [
        _line(s.id, s.costs, s.at_least, [s.sources.get(x, {}) for x in sources], _status(compared, s))
        for s in static.stages
    ]
    said = [static.sources.get(x, {}) for x in sources]
    lines.append(_line("total", static.totals, static.totals_at_least, said, compared.verdict))
    bad = open_findings(compared)
    shown = [
        f"{visible(f.id)}: residual {exact(f.residual)}"
        + (f" = {visible(f.error_expression)} per module" if f.error_expression else "")
        for f in bad[:_MAX_OPEN]
    ]
    if len(bad) > _MAX_OPEN:
        shown.append(f"… and {len(bad) - _MAX_OPEN} more: costproof render CAPTURE -f discrepancy-md")
    others = compared.counters.incomplete if compared.counters is not None else ()
    return Summary(
        title=visible(f"{static.target.name}, {static.workload.name}: {workload_line(static.workload)}"),
        model=visible(model_line(static.target)),
        sources=sources,
        lines=tuple(lines),
        verdict=compared.verdict,
        sentence=visible(report.sentence),
        open=(*shown, *map(visible, (*compared.incomplete[1:], *filter(None, [next_step(compared)]), *others))),
        not_counted=tuple(visible(what) for what, _ in report.capture.not_counted),
        macs=macs(report.capture, compared) if counted(report.capture) else None,
    )


def _line(stage: str, costs: Costs, low: dict[str, int], said: list[Costs], status: str) -> Line:
    return Line(
        stage=stage,
        params=bounded(costs["params"], low.get("params")),
        params_exact=exact(costs["params"]),
        flops=bounded(costs["flops"], low.get("flops"), "FLOP"),
        by_source=tuple(x.get("flops") for x in said),
        given=tuple("flops" in x for x in said),
        status=status,
    )


def _status(found: Discrepancy, stage: StageCompute) -> str:
    """A stage that does not run at this workload is called so, unless something is wrong with it."""
    words = stage_words(found, stage.id)
    return words if stage.invocations or _word(words) not in GOOD else "not-executed"


def _word(status: str) -> str:
    """The status without the metrics that have it."""
    return status.partition(" ")[0]


def print_summary(console: Console, data: Summary) -> None:
    """Typeset the summary: exact integers where the terminal is wide enough, rounded ones otherwise."""
    from rich.measure import Measurement
    from rich.text import Text

    console.print(Text(data.title, style="bold"), soft_wrap=True)
    console.print(Text(data.model), soft_wrap=True)
    grid = _grid(data, digits=True)
    fits = Measurement.get(console, console.options.update(max_width=1000), grid).maximum <= console.width
    console.print(grid if fits else _grid(data, digits=False))
    console.print(Text(data.sentence, style=_STYLES.get(data.verdict, "bold yellow")), soft_wrap=True)
    for text in data.open:
        console.print(Text("  " + text), soft_wrap=True)
    console.print()
    console.print(Text("Not counted: " + "; ".join(data.not_counted) + "."), soft_wrap=True)
    if data.macs is not None:
        print_macs(console, data.macs)


def _grid(data: Summary, *, digits: bool) -> Table:
    """The table with all digits; or with rounded numbers, and then the sources say what the FLOPs are."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    grid.add_column("Stage", no_wrap=True)
    for title in ("Params", *(("FLOPs",) if digits else ()), *data.sources):
        grid.add_column(title, justify="right", no_wrap=True)
    grid.add_column("Status", no_wrap=True)
    for line in data.lines:
        if len(data.lines) > 1 and line is data.lines[-1]:
            grid.add_section()
        cells = [
            ("—" if not given else exact(value) if digits else human(value))
            for value, given in zip(line.by_source, line.given, strict=True)
        ]
        grid.add_row(
            Text(visible(line.stage)),
            line.params_exact if digits and line.params_exact != "?" else line.params,
            *((line.flops,) if digits else ()),
            *cells,
            Text(line.status, style=_STYLES.get(_word(line.status), "" if _word(line.status) in GOOD else "yellow")),
            style="bold" if line is data.lines[-1] else "",
        )
    return grid


def summary_text(report: Report, width: int = PLAIN_WIDTH) -> str:
    """The summary without colour, as a file holds it."""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, highlight=False, emoji=False)
    print_summary(console, summary(report))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"
