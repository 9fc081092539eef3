"""Print the table of ``costproof report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.compare.verdict import next_step
from costproof.ledger.plural import plural
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.workload import counted_line
from costproof.reports.modules import short_table
from costproof.reports.screen import align_table, print_line, print_table, table_fits
from costproof.reports.static import (
    CONVENTION,
    LOUD,
    convention_rows,
    stack_sentences,
    unknown_sentences,
    whole_rows,
    whole_title,
)
from costproof.reports.text import print_plain
from costproof.views.describe import model_line, workload_line
from costproof.views.numbers import exact, human, human_or_bound
from costproof.views.verdicts import GOOD, open_findings, stage_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from costproof.compare.findings import Discrepancy
    from costproof.reports.report import Report
    from costproof.views.static_compute import StageCompute

_MAX_OPEN: Final = 10
_MAX_NOTES: Final = 4
_STYLES: Final = {"exact": "green", "explained": "green", "unexplained": "bold red", "unsupported": "bold yellow"}


def print_summary(console: Console, report: Report) -> None:
    """Typeset the summary: exact integers where the terminal is wide enough, rounded ones otherwise."""

    def tell(text: str, style: str = "") -> None:
        print_line(console, text, style)

    static, compared = report.figures, report.discrepancy
    tell(f"{static.target.title}, {static.workload.name}: {workload_line(static.workload)}", "bold")
    tell(model_line(static.target))
    tell(counted_line(static.target, static.workload))
    head, rows = _rows(report, digits=True)
    if not table_fits(console, [head, *rows]):
        head, rows = _rows(report, digits=False)
    print_table(console, head, "l" + "r" * (len(head) - 2) + "l", rows, total=rows[-1][0] == "total")
    if lines := short_table(report, console.width):
        for line in lines:
            tell(line)
        console.print()
    tell(report.sentence, _STYLES.get(compared.verdict, "bold yellow"))
    for text in _open(compared):
        tell("  " + text)
    for note in _notes(compared):
        tell(f"Note: {note}", "yellow")
    console.print()
    tell("Not counted: " + "; ".join(what for what, _ in report.capture.not_counted) + ".")
    if (whole := report.capture.whole) is not None:
        console.print()
        tell(f"{whole_title(whole)}:", "bold")
        for text in (
            *align_table(*whole_rows(whole, digits=False), width=console.width - 2),
            *stack_sentences(whole),
            *unknown_sentences(whole),
        ):
            tell("  " + text)
    if counted := convention_rows(static):
        console.print()
        tell(f"Convention fvcore-macs: {LOUD}", "bold yellow")
        for line in align_table(CONVENTION, counted, width=console.width - 2):
            tell("  " + line)


def _open(found: Discrepancy) -> list[str]:
    """Return the open findings and the reasons why the result is incomplete."""
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
    """Return the notes of the sources on how they counted: a missing head, parts that never ran."""
    said = list(dict.fromkeys(note for _, covered in sorted(found.coverage.items()) for note in covered.notes))
    more = [f"and {plural(len(said) - _MAX_NOTES, 'more note')} in discrepancy.md"] if len(said) > _MAX_NOTES else []
    return [*said[:_MAX_NOTES], *more]


def _rows(report: Report, *, digits: bool) -> tuple[tuple[str, ...], list[tuple[str | Text, ...]]]:
    """Return headings and rows with exact numbers, or with rounded ones for narrow terminals."""
    from rich.text import Text

    static, compared = report.figures, report.discrepancy
    sources = [s for s in ALL_SOURCES if s in report.capture.by_source]
    sums = [(s.id, s.costs, s.at_least, s.sources, _status(compared, s)) for s in static.stages]
    if not static.one_stage:
        sums.append(("total", static.totals, static.totals_at_least, static.sources, compared.verdict))
    shown = exact if digits else human
    rows: list[tuple[str | Text, ...]] = []
    for stage, costs, low, said, status in sums:
        params = costs["params"]
        numbers = [exact(params) if digits and params is not None else human_or_bound(params, low.get("params"))]
        numbers += [human_or_bound(costs["flops"], low.get("flops"), "FLOP")] if digits else []
        numbers += [shown(said[s]["flops"]) if "flops" in said.get(s, {}) else "—" for s in sources]
        word = _word(status)
        style = _STYLES.get(word, "" if word in GOOD else "yellow")
        rows.append((stage, *numbers, Text(status, style=style)))
    return ("Stage", *(["Params", "FLOPs"] if digits else ["Params"]), *sources, "Status"), rows


def _status(found: Discrepancy, stage: StageCompute) -> str:
    """Return the status of a stage; ``not-executed`` if it does not run at this workload and nothing is wrong."""
    words = stage_words(found, stage.id)
    return words if stage.invocations or _word(words) not in GOOD else "not-executed"


def _word(status: str) -> str:
    """Return the status without the metrics that have it."""
    return status.partition(" ")[0]


def summary_text(report: Report, width: int | None = None) -> str:
    """Return the summary without color, as a file contains it."""
    return print_plain(lambda console: print_summary(console, report), width)
