"""The table that ``costproof report`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.compare.verdict import next_step
from costproof.ledger.counted import counted_line
from costproof.ledger.sources import ALL_SOURCES
from costproof.reports.convention import HEAD, LOUD, convention_rows
from costproof.reports.describe import model_line, workload_line
from costproof.reports.escape import visible
from costproof.reports.modules_text import short_table
from costproof.reports.numbers import aligned, bounded, exact, human, plural
from costproof.reports.uncoloured import uncoloured
from costproof.reports.verdicts import GOOD, open_findings, stage_words
from costproof.reports.whole_words import how, not_known, whole_rows, whole_title

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from costproof.compare.findings import Discrepancy
    from costproof.reports.report import Report
    from costproof.reports.static_compute import StageCompute

PLAIN_WIDTH: Final = 200
"""Columns that the table may take where there is no terminal to ask."""
_MAX_OPEN: Final = 10
_MAX_NOTES: Final = 4
_STYLES: Final = {"exact": "green", "explained": "green", "unexplained": "bold red", "unsupported": "bold yellow"}


def print_summary(console: Console, report: Report) -> None:
    """Typeset the summary: exact integers where the terminal is wide enough, rounded ones otherwise."""
    from rich.measure import Measurement
    from rich.text import Text

    def say(text: str, style: str = "") -> None:
        console.print(Text(visible(text), style=style), soft_wrap=True)

    static, compared = report.figures, report.discrepancy
    say(f"{static.target.title}, {static.workload.name}: {workload_line(static.workload)}", "bold")
    say(model_line(static.target))
    say(counted_line(static.target, static.workload))
    grid = _grid(report, digits=True)
    fits = Measurement.get(console, console.options.update(max_width=1000), grid).maximum <= console.width
    console.print(grid if fits else _grid(report, digits=False))
    if lines := short_table(report):
        for line in lines:
            say(line)
        console.print()
    say(report.sentence, _STYLES.get(compared.verdict, "bold yellow"))
    for text in _open(compared):
        say("  " + text)
    for note in _notes(compared):
        say(f"Note: {note}", "yellow")
    console.print()
    say("Not counted: " + "; ".join(what for what, _ in report.capture.not_counted) + ".")
    if (whole := report.capture.whole) is not None:
        console.print()
        say(f"{whole_title(whole)}:", "bold")
        for text in (*aligned(*whole_rows(whole, digits=False)), *how(whole), *not_known(whole)):
            say("  " + text)
    if rows := convention_rows(static):
        console.print()
        say(f"Convention fvcore-macs: {LOUD}", "bold yellow")
        for line in aligned(HEAD, rows):
            say("  " + line)


def _open(found: Discrepancy) -> list[str]:
    """What is left over, and why the result is incomplete."""
    bad = open_findings(found)
    lines = [
        f"{f.id}: residual {exact(f.residual)}" + (f" = {f.error_expression} per module" if f.error_expression else "")
        for f in bad[:_MAX_OPEN]
    ]
    if len(bad) > _MAX_OPEN:
        lines.append(f"… and {len(bad) - _MAX_OPEN} more: costproof render CAPTURE -f discrepancy-md")
    others = found.counters.incomplete if found.counters is not None else ()
    return [*lines, *found.incomplete[1:], *filter(None, [next_step(found)]), *others]


def _notes(found: Discrepancy) -> list[str]:
    """What the sources say about how they counted: a class without its head, parts that nothing reached."""
    said = list(dict.fromkeys(note for _, covered in sorted(found.coverage.items()) for note in covered.notes))
    more = [f"and {plural(len(said) - _MAX_NOTES, 'more note')} in discrepancy.md"] if len(said) > _MAX_NOTES else []
    return [*said[:_MAX_NOTES], *more]


def _grid(report: Report, *, digits: bool) -> Table:
    """The table with all digits; or with rounded numbers, and then the sources say what the FLOPs are."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    static, compared = report.figures, report.discrepancy
    sources = [s for s in ALL_SOURCES if s in report.capture.by_source]
    rows = [(s.id, s.costs, s.at_least, s.sources, _status(compared, s)) for s in static.stages]
    whole = (static.totals, static.totals_at_least, static.sources)
    if [row[1:4] for row in rows] != [whole]:  # a model of one stage has each sum once
        rows.append(("total", *whole, compared.verdict))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("Stage", *(["Params", "FLOPs"] if digits else ["Params"]), *sources, "Status"):
        table.add_column(title, justify="left" if title in ("Stage", "Status") else "right", no_wrap=True)
    for row in rows:
        stage, costs, low, said, status = row
        last = stage == "total" and row is rows[-1]
        if last:
            table.add_section()
        params = costs["params"]
        numbers = [exact(params) if digits and params is not None else bounded(params, low.get("params"))]
        numbers += [bounded(costs["flops"], low.get("flops"), "FLOP")] if digits else []
        for source in sources:
            given = said.get(source, {})
            shown = exact if digits else human
            numbers.append(shown(given["flops"]) if "flops" in given else "—")
        word = _word(status)
        style = _STYLES.get(word, "" if word in GOOD else "yellow")
        table.add_row(Text(visible(stage)), *numbers, Text(status, style=style), style="bold" if last else "")
    return table


def _status(found: Discrepancy, stage: StageCompute) -> str:
    """A stage that does not run at this workload is called so, unless something is wrong with it."""
    words = stage_words(found, stage.id)
    return words if stage.invocations or _word(words) not in GOOD else "not-executed"


def _word(status: str) -> str:
    """The status without the metrics that have it."""
    return status.partition(" ")[0]


def summary_text(report: Report, width: int = PLAIN_WIDTH) -> str:
    """The summary without colour, as a file holds it."""
    return uncoloured(lambda console: print_summary(console, report), width)
