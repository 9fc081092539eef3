"""Report the cost of each module as text, with equal layers in one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.metrics import METRICS, Metric
from costproof.ledger.workload import counted_line
from costproof.reports.screen import align_table, fill_lines
from costproof.views.describe import model_line, workload_line
from costproof.views.module_tree import FormulaTable, ModuleRows
from costproof.views.numbers import exact, human, share

if TYPE_CHECKING:
    from costproof.views.results import Results

HEAD: Final = ("Module", "Class", "x", "Params", "FLOPs", "Share", "Status")
SHORT: Final = 12
"""Rows of the short table."""
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
    """Return a table of the outermost modules of a single-stage model; empty for others or if there are too many."""
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
    """Return the number, or that of the first source if the sources differ."""
    return next(iter(value.values())) if isinstance(value, dict) else value  # type: ignore[no-any-return]


def _format_sum(row: dict[str, Any], metric: Metric) -> str:
    """Format the number that all sources give, or the exact numbers of each if they differ."""
    value = row["sum"].get(metric, 0)
    if isinstance(value, dict):
        return ", ".join(f"{source} {exact(number)}" for source, number in value.items())
    return exact(value) if metric == "params" or value == 0 else human(value, METRICS[metric].unit)
