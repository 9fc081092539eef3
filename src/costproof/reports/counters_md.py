"""Third-party counters beside the truth, as a page and as a section of another report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costproof.compare.findings import CAUSES, CounterComparison, CounterTool
from costproof.ledger.plural import plural
from costproof.reports.counters_table import HEAD, NONE, SPENT, Row, groups, printed, spent, tool_row
from costproof.reports.escape import code, details, head, markdown, table
from costproof.views.counters import CounterReport
from costproof.views.numbers import exact

MAX_ROWS: Final = 15
"""Rows of the section in another report."""
_MOST_CAUSES: Final = 3


def counters_md(report: CounterReport) -> str:
    """A page."""
    title = f"Third-party counters on {markdown(report.target.title)}"
    lines = [
        *head(title, counts(report.compared), report.target, report.workload),
        "Every tool ran on the same inputs, on the meta device, in a process of its own.",
        "`value` is what it prints, in its own unit; `error` compares it in FLOP with our own count of the same",
        "forward. Decode is one step.",
        "",
    ]
    for title, rows, first in groups(report):
        shown = [tuple(_md_cell(h, c) for h, c in zip(HEAD, r.cells, strict=True)) for r in rows]
        remarks = [f"- {code(r.name)}: {markdown(r.remark)}" for r in rows if r.remark]
        body = [*table(HEAD, "lllrrrrrrl", shown), "", *remarks, *([""] if remarks else []), *_causes(rows)]
        lines += [f"## {title}", "", *body] if first else details(title, body)
    tools = [
        (code(name), code(package), *map(markdown, rest)) for name, package, *rest in map(tool, report.compared.tools)
    ]
    lines += ["## The tools", "", *table(TOOLS, "llll", tools), ""]
    if report.spent:
        rows_ = [(code(name), *rest) for name, *rest in spent(report)]
        lines += [*table(SPENT, "lrr", rows_), ""]
    lines += [f"- {markdown(line)}" for line in (*report.compared.remarks, *printed(report))]
    used = {c.kind for f in report.compared.findings for c in f.causes}
    lines += ["", *(f"- {code(kind)}: {markdown(CAUSES[kind])}" for kind in sorted(used))]
    return "\n".join(lines).rstrip() + "\n"


def _md_cell(head: str, text: str) -> str:
    return code(text) if head in ("counter", "version") and text != NONE else markdown(text)


def _causes(rows: Sequence[Row]) -> list[str]:
    shown = [
        (code(r.name), exact(amount), code(cause), markdown(why), markdown(where))
        for r in rows
        for amount, cause, why, where in r.causes
    ]
    head = ("counter", "amount", "cause", "why", "for example")
    return details(plural(len(shown), "cause"), table(head, "lrlll", shown)) if shown else []


def counters_section(compared: CounterComparison) -> list[str]:
    """The sums, folded, as a part of another report."""
    if not compared.totals:
        return details("Third-party counters: none", [f"- {markdown(line)}" for line in compared.remarks])
    head = ("counter", "unit", "value", "truth", "error", "residual", "verdict", "largest causes")
    rows = []
    for found in compared.totals[:MAX_ROWS]:
        row = tool_row(compared, found)
        causes = [f"{amount:+,} {why}" for amount, _, why, _ in row.causes[:_MOST_CAUSES]]
        causes += [f"{len(row.causes) - _MOST_CAUSES} more"] if len(row.causes) > _MOST_CAUSES else []
        said = [row.remark] if row.remark else causes
        cells = dict(zip(HEAD, row.cells, strict=True))
        rows.append((code(row.name), *(markdown(cells[h]) for h in head[1:-1]), markdown("; ".join(said))))
    more = len(compared.totals) - MAX_ROWS
    body = [
        "Third-party counters on the same forwards, decode one step; no part of the verdict above.",
        "",
        *table(head, "llrrrrll", rows),
        "",
        *([f"… and {more} more in counters.json.", ""] if more > 0 else []),
        *(f"- {markdown(line)}" for line in compared.remarks),
    ]
    return details(f"Third-party counters: {counts(compared)}", body)


TOOLS: Final = ("counter", "package", "version", "tested versions")


def counts(compared: CounterComparison) -> str:
    """``3 tools, 2 explained, 1 failed``."""
    verdicts = [f.verdict for f in compared.totals]
    return ", ".join([plural(len(verdicts), "tool"), *(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))])


def tool(found: CounterTool) -> tuple[str, ...]:
    """A row of :data:`TOOLS`: what ran, and whether that version was tested."""
    info, version = found.info, found.version or "not installed"
    if found.version is not None and found.version.partition("+")[0] not in info.tested:
        version += ", not tested"
    return info.name, info.package, version, info.tested_text
