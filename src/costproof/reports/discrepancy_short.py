"""``discrepancy-short.md``: the comparison in few lines, short enough for a comment on a pull request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from costproof.compare.verdict import next_step
from costproof.reports.describe import head
from costproof.reports.discrepancy_md import sources_of, status_words, values_of
from costproof.reports.escape import code, markdown, table
from costproof.reports.numbers import cut, exact, plural
from costproof.reports.verdicts import open_findings, tally

if TYPE_CHECKING:
    from costproof.compare.findings import Discrepancy, Finding
    from costproof.reports.report import Report

LIMIT: Final = 65_536
"""Characters that a comment on GitHub may have; the text has fewer."""
MAX_ROWS: Final = 15
_MAX_REASONS: Final = 5
_LONGEST: Final = 160


def discrepancy_short(report: Report) -> str:
    """Verdict, what is open or explained (largest first), and what was left out."""
    for rows in range(MAX_ROWS, -1, -1):
        text = _page(report, rows)
        if len(text) < LIMIT:
            break
    return text


def _page(report: Report, most: int) -> str:
    found = report.discrepancy
    picked = _picked(found)
    target = replace(found.target, name=cut(found.target.name, _LONGEST))
    workload = replace(found.workload, name=cut(found.workload.name, _LONGEST))
    lines = head(f"{markdown(target.name)}: {found.verdict}", cut(report.sentence, 4 * _LONGEST), target, workload)
    reasons = [*found.incomplete[1 : _MAX_REASONS + 1], *filter(None, [next_step(found)])]
    lines += [*(f"- {markdown(cut(r, _LONGEST))}" for r in reasons), *([""] if reasons else [])]
    sources = sources_of(found)
    rows = [_row(f, sources) for f in picked[:most]]
    if rows:
        title = ("Comparison", *map(markdown, sources), "Delta", "Residual", "Status")
        lines += [*table(title, "l" + "r" * len(sources) + "rrl", rows), ""]
    left = len(found.findings) - len(rows)
    lines.append(
        f"{tally(found)}. "
        f"Left out here: {plural(left, 'comparison')}, evidence, coverage and conventions; discrepancy.md has them."
    )
    return "\n".join(lines) + "\n"


def _picked(found: Discrepancy) -> list[Finding]:
    """Open findings, then explained differences, each by size; then the sums of FLOPs."""
    bad = open_findings(found)
    named = [f for f in found.findings if f.delta and f.status == "explained"]
    sums = [f for f in found.findings if f.level in ("total", "stage") and f.metric == "flops"]
    ranked = [*bad, *sorted(named, key=lambda f: (-abs(f.delta or 0), f.id)), *sums]
    return list({f.id: f for f in ranked}.values())


def _row(f: Finding, sources: list[str]) -> tuple[str, ...]:
    causes = ", ".join(dict.fromkeys(c.kind for c in f.causes))
    return (
        code(cut(f.id, _LONGEST)),
        *values_of(f, sources),
        exact(f.delta),
        exact(f.residual),
        status_words(f) + (f" ({markdown(causes)})" if causes else ""),
    )
