"""Print the table of ``costproof report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.compare.verdict import next_step
from costproof.ledger.plural import plural
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.workload import counted_line
from costproof.reports.document import (
    Block,
    Cell,
    Document,
    DocumentSection,
    Items,
    Markup,
    Note,
    Status,
    Table,
    Verdict,
)
from costproof.reports.modules import short_table
from costproof.reports.screen import table_fits
from costproof.reports.static import (
    CONVENTION,
    LOUD,
    convention_rows,
    stack_sentences,
    unknown_sentences,
    whole_rows,
    whole_title,
)
from costproof.reports.text import TerminalPrinter, cell_text, print_plain
from costproof.views.describe import model_line, workload_line
from costproof.views.numbers import exact, human, human_or_bound
from costproof.views.results import Results
from costproof.views.verdicts import GOOD, open_findings, stage_words

if TYPE_CHECKING:
    from rich.console import Console

    from costproof.compare.findings import Discrepancy
    from costproof.views.static_compute import StageCompute

_MAX_OPEN: Final = 10
_MAX_NOTES: Final = 4


def print_summary(console: Console, report: Results) -> None:
    """Print the summary: exact integers if the terminal is wide enough, otherwise rounded ones."""
    head, rows = _rows(report, digits=True)
    digits = table_fits(console, [head, *([cell_text(cell) for cell in row] for row in rows)])
    TerminalPrinter(console).document(_document(report, digits=digits, width=console.width))


def _document(report: Results, *, digits: bool, width: int) -> Document:
    """Return the summary: a row for each stage, the verdict, open findings, and work that is not counted."""
    static, compared = report.figures, report.discrepancy
    title = f"{static.target.title}, {static.workload.name}: {workload_line(static.workload)}"
    head, rows = _rows(report, digits=digits)
    body: list[Block] = [Table(head, "l" + "r" * (len(head) - 2) + "l", rows, total=rows[-1][0] == "total")]
    if lines := short_table(report, width):
        body.append(Markup("\n".join([*lines, ""])))
    body += [Verdict(compared.verdict, report.sentence), Items(tuple(_open(compared)))]
    body += [*(Note(f"Note: {note}") for note in _notes(compared)), ""]
    body.append("Not counted: " + "; ".join(what for what, _ in report.capture.not_counted) + ".")
    if (whole := report.capture.whole) is not None:
        columns, sums = whole_rows(whole, digits=False)
        said = (*stack_sentences(whole), *unknown_sentences(whole))
        body.append(DocumentSection(f"{whole_title(whole)}:", [Table(columns, "lr", sums), *said]))
    if counted := convention_rows(static):
        body.append(DocumentSection(f"Convention fvcore-macs: {LOUD}", [Table(CONVENTION, "lr", counted)]))
    return Document(title, body, about=[model_line(static.target), counted_line(static.target, static.workload)])


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


def _rows(report: Results, *, digits: bool) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Return headings and rows with exact numbers, or with rounded ones for narrow terminals."""
    static, compared = report.figures, report.discrepancy
    sources = [s for s in ALL_SOURCES if s in report.capture.by_source]
    sums = [(s.id, s.costs, s.at_least, s.sources, _status(compared, s)) for s in static.stages]
    if not static.one_stage:
        sums.append(("total", static.totals, static.totals_at_least, static.sources, compared.verdict))
    shown = exact if digits else human
    rows: list[tuple[Cell, ...]] = []
    for stage, costs, low, said, status in sums:
        params = costs["params"]
        numbers = [exact(params) if digits and params is not None else human_or_bound(params, low.get("params"))]
        numbers += [human_or_bound(costs["flops"], low.get("flops"), "FLOP")] if digits else []
        numbers += [shown(said[s]["flops"]) if "flops" in said.get(s, {}) else "—" for s in sources]
        rows.append((stage, *numbers, Status(status)))
    return ("Stage", *(["Params", "FLOPs"] if digits else ["Params"]), *sources, "Status"), rows


def _status(found: Discrepancy, stage: StageCompute) -> str:
    """Return the status of a stage; ``not-executed`` if it does not run at this workload and nothing is wrong."""
    words = stage_words(found, stage.id)
    return words if stage.invocations or _word(words) not in GOOD else "not-executed"


def _word(status: str) -> str:
    """Return the status without the metrics that have it."""
    return status.partition(" ")[0]


def summary_text(report: Results, width: int | None = None) -> str:
    """Return the summary without color, as a file contains it."""
    return print_plain(lambda console: print_summary(console, report), width)
