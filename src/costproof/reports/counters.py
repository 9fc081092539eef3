"""Other people's counters beside the truth: a table, the causes, the same as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costproof.compare.counters import CounterFinding
from costproof.compare.findings import CAUSES
from costproof.ledger.conventions import Conventions
from costproof.ledger.counter import CounterInfo
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload
from costproof.reports.escape import code, markdown, table, visible
from costproof.reports.numbers import exact, human, share


@dataclass(frozen=True, slots=True)
class OwnNumber:
    """A number that the user has from somewhere."""

    name: str
    text: str
    """As it was given: ``571.92G``."""
    least: int
    most: int
    """The integers that print as ``text``."""
    matches: tuple[str, ...] = ()
    """What in this report has that value: ``sam[crops]: fvcore`` …"""


@dataclass(frozen=True, slots=True)
class CounterReport:
    """All counters on one target and workload. Decode is one step at the first context."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    counters: tuple[CounterInfo, ...]
    versions: dict[str, str | None]
    totals: tuple[CounterFinding, ...]
    """One row a counter: the sum over the stages."""
    findings: tuple[CounterFinding, ...]
    """Counter by counter, one for each invocation of each stage."""
    checked: tuple[str, ...] = ()
    """Where the truth was compared with the closed formulas, and how that ended."""
    own: tuple[OwnNumber, ...] = ()


COUNTERS: Final = FileKind(name="costproof/counters", version=(1, 0), type=CounterReport)

_HEAD: Final = (
    "counter", "version", "unit", "value", "in FLOP", "error", "covers", "residual", "time", "memory",
)  # fmt: skip


def error_percent(found: CounterFinding) -> str:
    """``+1.23 %`` of the truth, from the normalised value."""
    if found.normalised is None or not found.truth:
        return "?"
    delta = found.normalised - found.truth
    if delta == 0:
        return "0 %"
    hundredths = (20000 * abs(delta) + found.truth) // (2 * found.truth)
    sign = "-" if delta < 0 else "+"
    if hundredths == 0:
        return f"{sign}<0.01 %"
    return f"{sign}{hundredths // 100}.{hundredths % 100:02d} %"


def cells(report: CounterReport, found: CounterFinding) -> tuple[str, ...]:
    """One row of the table as text."""
    info = next(i for i in report.counters if i.name == found.counter)
    return (
        found.counter,
        report.versions.get(found.counter) or "not installed",
        info.unit,
        human(found.value),
        human(found.normalised, "FLOP"),
        error_percent(found),
        share(found.covered, found.truth) or "?",
        "failed" if found.error else exact(found.residual),
        f"{found.milliseconds / 1000:.1f} s",
        human(found.peak_bytes, "B", places=1),
    )


def counters_text(report: CounterReport) -> str:
    """For the console."""
    lines = [f"{report.target.name} at {report.workload.name}: counters beside the truth", ""]
    groups = [("all stages", report.totals), *_by_place(report)]
    for title, rows in groups:
        lines += [f"{title}: truth {human(rows[0].truth, 'FLOP')}", *_aligned(report, rows)]
        for found in rows:
            if found.error:
                lines.append(f"  {found.counter}: {visible(found.error)}")
            if title == "all stages":
                for cause in found.causes:
                    lines.append(f"  {found.counter}: {cause.amount:+,}  {visible(cause.note)}")
        lines.append("")
    lines += [*report.checked, *_own_lines(report)]
    return "\n".join(lines).rstrip() + "\n"


def counters_md(report: CounterReport) -> str:
    """A page, and a section of others: headings start at the second level."""
    lines = [f"## Counters that people use, on {markdown(report.target.name)} at {markdown(report.workload.name)}", ""]
    lines += [
        "Every tool ran on the same inputs, on the meta device, in a process of its own.",
        "`value` is what it prints, in its own unit; `error` compares it in FLOP with our own count of the same",
        "forward. Decode is one step.",
        "",
    ]
    for title, rows in [("All stages", report.totals), *_by_place(report)]:
        lines += [f"### {title}: {human(rows[0].truth, 'FLOP')}", ""]
        shown = [tuple(code(c) if i < 2 else markdown(c) for i, c in enumerate(cells(report, f))) for f in rows]
        lines += [*table(_HEAD, "lllrrrrrrr", shown), ""]
        causes = [
            (code(f.counter), exact(c.amount), code(c.kind), markdown(c.note), markdown(", ".join(c.evidence[:1])))
            for f in rows
            for c in f.causes
        ]
        if causes:
            lines += [*table(("counter", "amount", "cause", "why", "for example"), "lrlll", causes), ""]
        for found in rows:
            if found.error:
                lines += [f"- {code(found.counter)} failed: {markdown(found.error)}"]
            elif found.residual:
                lines += [f"- {code(found.counter)}: {exact(found.residual)} stays unexplained"]
        lines.append("")
    lines += [f"- {markdown(line)}" for line in (*report.checked, *_own_lines(report))]
    used = {c.kind for f in report.findings for c in f.causes}
    lines += ["", *(f"- {code(kind)}: {markdown(CAUSES[kind])}" for kind in sorted(used))]
    return "\n".join(lines).rstrip() + "\n"


def _by_place(report: CounterReport) -> list[tuple[str, tuple[CounterFinding, ...]]]:
    places = dict.fromkeys((f.stage, f.invocation) for f in report.findings)
    return [
        (f"{stage}[{call}]", tuple(f for f in report.findings if (f.stage, f.invocation) == (stage, call)))
        for stage, call in places
    ]


def _aligned(report: CounterReport, rows: Sequence[CounterFinding]) -> list[str]:
    grid = [_HEAD, *(cells(report, f) for f in rows)]
    widths = [max(len(r[i]) for r in grid) for i in range(len(_HEAD))]
    return [
        "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
        for r in grid
    ]


def _own_lines(report: CounterReport) -> list[str]:
    return [
        f"{own.name} = {own.text}: " + ("; ".join(own.matches) if own.matches else "nothing here has that value")
        for own in report.own
    ]
