"""Print the tables of ``costproof report``: a row for each stage, or for each module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from costproof.compare.verdict import next_step, verdict_words
from costproof.ledger.metrics import METRICS, Metric
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
from costproof.reports.screen import align_table, fill_lines, table_fits
from costproof.reports.static import (
    CONVENTION,
    LOUD,
    PADDING,
    convention_rows,
    padding_lines,
    ranks_lines,
    stack_sentences,
    unknown_sentences,
    whole_rows,
    whole_title,
)
from costproof.reports.text import TerminalPrinter, cell_text, print_plain
from costproof.views.describe import model_line, workload_line
from costproof.views.module_tree import FormulaTable, ModuleRows
from costproof.views.numbers import exact, human, human_or_bound, share
from costproof.views.results import GOOD, Results, open_findings, stage_words

if TYPE_CHECKING:
    from rich.console import Console

    from costproof.compare.findings import Discrepancy
    from costproof.views.results import Results
    from costproof.views.static_compute import StageCompute

_MAX_OPEN: Final = 10
_MAX_NOTES: Final = 4


def print_summary(console: Console, report: Results) -> None:
    """Print the summary with exact integers if the terminal is wide enough, otherwise with rounded ones."""
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
    if (parallel := report.capture.parallel) is not None:
        title_of_ranks = f"All {plural(parallel.mesh.world, 'device')} ({parallel.mesh.text}), by the formulas:"
        body.append(DocumentSection(title_of_ranks, [Items(tuple(ranks_lines(parallel)))]))
    if (padding := report.capture.padding) is not None:
        body.append(DocumentSection(f"{PADDING}:", [Items(tuple(padding_lines(padding)))]))
    if counted := convention_rows(static):
        body.append(DocumentSection(f"Convention fvcore-macs: {LOUD}", [Table(CONVENTION, "lr", counted)]))
    return Document(title, body, about=[model_line(static.target), counted_line(static.target, static.workload)])


def _open(found: Discrepancy) -> list[str]:
    """Return lines on the open findings, and on the reasons for an incomplete result."""
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
    """Return the first notes of the sources on their counts, such as a missing head or modules that never ran."""
    said = list(dict.fromkeys(note for _, covered in sorted(found.coverage.items()) for note in covered.notes))
    more = [f"and {plural(len(said) - _MAX_NOTES, 'more note')} in discrepancy.md"] if len(said) > _MAX_NOTES else []
    return [*said[:_MAX_NOTES], *more]


def _rows(report: Results, *, digits: bool) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Return headings and rows of the stage table, with exact numbers or rounded for narrow terminals."""
    static, compared = report.figures, report.discrepancy
    sources = [s for s in ALL_SOURCES if s in report.capture.by_source]
    sums = [(s.id, s.costs, s.at_least, s.sources, _status(compared, s)) for s in static.stages]
    if not static.one_stage:
        sums.append(("total", static.totals, static.totals_at_least, static.sources, verdict_words(compared)))
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
    """Return the status of a stage; ``not-executed`` if the workload does not run the stage and no finding is open."""
    words = stage_words(found, stage.id)  # the status, and the metrics that have it
    return words if stage.invocations or words.partition(" ")[0] not in GOOD else "not-executed"


def summary_text(report: Results, width: int | None = None) -> str:
    """Return the summary without color, as a file contains it."""
    return print_plain(lambda console: print_summary(console, report), width)


HEAD: Final = ("Module", "Class", "x", "Params", "FLOPs", "Share", "Status")
SHORT: Final = 12
"""Maximum number of rows of the short module table."""
LEGEND: Final = "Each row has everything inside the module; x says how many equal modules a row stands for."


def modules_text(found: Results, width: int | None = None) -> str:
    """Return a table of every module, stage by stage."""
    rows = ModuleRows(found, FormulaTable(), {}).rows
    static = found.figures
    head = [
        f"{static.target.title}, {static.workload.name}: {workload_line(static.workload)}",
        model_line(static.target),
        counted_line(static.target, static.workload),
    ]
    lines = [*head, "", *_table(rows, rows, width), "", LEGEND, found.sentence]
    return fill_lines(lines, width)


def short_table(found: Results, width: int) -> list[str]:
    """Return a table of the outermost modules of a single-stage model; empty for others, or if it were too long."""
    if len(found.capture.target.stages) != 1:
        return []
    rows = ModuleRows(found, FormulaTable(), {}).rows
    levels: list[int] = []
    for row in rows:
        levels.append(0 if row["parent"] is None else levels[row["parent"]] + 1)
    for depth in (2, 1):
        some = [row for row, level in zip(rows, levels, strict=True) if 0 < level <= depth]
        if 1 < len(some) <= SHORT:
            return _table(rows, some, width)
    return []


def _table(rows: list[dict[str, Any]], some: list[dict[str, Any]], width: int | None) -> list[str]:
    tops = {row["stage"]: row for row in rows if row["parent"] is None}
    wholes = {stage: _first(top["sum"].get("flops", 0)) for stage, top in tops.items()}
    least = min((_level(rows, row) for row in some), default=0)
    cells = []
    for row in some:
        flops = row["sum"].get("flops", 0)
        indent = "  " * (_level(rows, row) - least)
        cells.append((
            indent + row["name"], row["class"], exact(row["n"]) if row["n"] > 1 else "",
            _format_sum(row, "params"), _format_sum(row, "flops"),
            share(_first(flops), wholes[row["stage"]]) if flops != 0 else "", row["status"],
        ))  # fmt: skip
    return align_table(HEAD, cells, 2, width)


def _level(rows: list[dict[str, Any]], row: dict[str, Any]) -> int:
    level = 0
    while row["parent"] is not None:
        row, level = rows[row["parent"]], level + 1
    return level


def _first(value: Any) -> int | None:
    """Return the number on which the sources agree, or the first source's number if they differ."""
    return next(iter(value.values())) if isinstance(value, dict) else value  # type: ignore[no-any-return]


def _format_sum(row: dict[str, Any], metric: Metric) -> str:
    """Format the number on which all sources agree, or each source's exact number if they differ."""
    value = row["sum"].get(metric, 0)
    if isinstance(value, dict):
        return ", ".join(f"{source} {exact(number)}" for source, number in value.items())
    return exact(value) if metric == "params" or value == 0 else human(value, METRICS[metric].unit)
