"""Third-party counters beside the truth, for the console."""

from __future__ import annotations

from costproof.reports.counters import CounterReport
from costproof.reports.counters_table import HEAD, SPENT, groups, printed, spent
from costproof.reports.describe import model_line, workload_line
from costproof.reports.escape import visible
from costproof.reports.numbers import aligned


def counters_text(report: CounterReport) -> str:
    """For the console."""
    lines = [
        f"{visible(report.target.name)} at {visible(report.workload.name)}: third-party counters beside the truth",
        f"model: {visible(model_line(report.target))}",
        f"workload: {visible(workload_line(report.workload))}",
        "",
    ]
    for title, rows, shown in groups(report):
        lines += [title, *aligned(HEAD, [tuple(map(visible, r.cells)) for r in rows], 3)]
        lines += [f"  {r.name}: {visible(r.remark)}" for r in rows if r.remark]
        lines += [f"  {r.name}: {amount:+,}  {visible(why)}" for r in rows if shown for amount, _, why, _ in r.causes]
        lines.append("")
    if report.spent:
        lines += ["Time and memory", *aligned(SPENT, spent(report), 2), ""]
    lines += [*report.compared.remarks, *printed(report)]
    return "\n".join(lines).rstrip() + "\n"
