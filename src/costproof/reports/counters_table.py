"""The tables on third-party counters: cells and remarks, the same in every format, and their plain text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from costproof.claims.types import TOTAL
from costproof.compare.findings import CounterComparison, CounterFinding
from costproof.ledger.plural import plural
from costproof.ledger.workload import counted_line
from costproof.reports.escape import visible
from costproof.reports.screen import aligned, filled
from costproof.views.counters import CounterReport, OwnNumber
from costproof.views.describe import model_line, workload_line
from costproof.views.numbers import exact, human, share

NONE: Final = "—"
HEAD: Final = (
    "counter", "version", "unit", "value", "truth", "in FLOP", "error", "covers", "residual", "verdict",
)  # fmt: skip
SPENT: Final = ("counter", "time", "memory")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, and what is said below it."""

    cells: tuple[str, ...]
    """Under :data:`HEAD`."""
    causes: tuple[tuple[int, str, str, str], ...]
    """(amount, cause, why, for example)"""
    remark: str
    """What went wrong, or stays open; empty if nothing."""
    values: tuple[int | None, ...]
    """Exact numbers of the cells between the name and the verdict; ``None`` where a cell is not one."""

    @property
    def name(self) -> str:
        """Of the counter, or of a number of the user's own."""
        return self.cells[0]


def groups(report: CounterReport) -> list[tuple[str, list[Row], bool]]:
    """Title, rows, and whether they stand first, with causes on the console: sums, and places of own numbers."""
    compared = report.compared
    places: dict[tuple[str, str], list[Row]] = {}
    for found in compared.findings:
        places.setdefault((found.stage, found.invocation), []).append(tool_row(compared, found))
    calls = {s: [c for stage, c in places if stage == s] for s, _ in places}
    own: dict[tuple[str, str], list[Row]] = {}
    for number in report.own:
        j = number.judgement
        only = calls.get(j.stage, [])
        # A stage that runs once is that run.
        call = only[0] if not j.invocation and len(only) == 1 else j.invocation
        own.setdefault((j.stage, call), []).append(_own_row(number))
    sums = [tool_row(compared, f) for f in compared.totals] + own.pop((TOTAL, ""), [])
    ordered = [("Total", sums, True)] if sums else []
    for stage, call in dict.fromkeys((*places, *own)):
        theirs, mine = places.get((stage, call), []), own.get((stage, call), [])
        ordered.append((f"{stage}[{call}]" if call else f"{stage}, all calls", [*theirs, *mine], bool(mine)))
    return ordered


def tool_row(compared: CounterComparison, found: CounterFinding) -> Row:
    tool = compared.tool(found.counter)
    stays = f"{exact(found.residual)} stays unexplained" if found.residual else ""
    return Row(
        (
            found.counter,
            tool.version or "not installed",
            tool.info.unit,
            human(found.value),
            human(found.truth, "FLOP"),
            human(found.normalised, "FLOP"),
            _error(found.normalised, found.truth),
            share(found.covered, found.truth) or "?",
            exact(found.residual),
            found.verdict,
        ),
        tuple((c.amount, c.kind, c.note, ", ".join(c.evidence[:1])) for c in found.causes),
        f"failed: {found.error}" if found.error is not None else stays,
        (None, None, found.value, found.truth, found.normalised, None, None, found.residual),
    )


def _own_row(number: OwnNumber) -> Row:
    j = number.judgement
    middle = (j.low + j.high) // 2 * (2 if number.unit == "mac" else 1)
    in_flop = middle if number.unit else None
    steps = j.explanations[0].steps if j.explanations else ()
    said = [f"{exact(j.residual)} stays unexplained"] if j.residual else []
    said += [j.note] if j.note else []
    if len(j.explanations) > 1:
        said.append(f"{plural(len(j.explanations) - 1, 'more set of causes fits', 'more sets of causes fit')} as well")
    return Row(
        (
            number.name,
            NONE,
            number.unit or "not said",
            j.claimed,
            human(j.truth, "FLOP"),
            human(in_flop, "FLOP"),
            _error(in_flop, j.truth),
            NONE,
            exact(j.residual),
            j.status,
        ),
        tuple((s.amount, s.cause, s.what, ", ".join(s.evidence[:1])) for s in steps),
        "; ".join(said),
        (None, None, None, j.truth, in_flop, None, None, j.residual),
    )


def _error(normalised: int | None, truth: int | None) -> str:
    """``+1.23 %`` of the truth."""
    if normalised is None or not truth:
        return "?"
    delta = normalised - truth
    if delta == 0:
        return "0 %"
    hundredths = (20000 * abs(delta) + truth) // (2 * truth)
    sign = "-" if delta < 0 else "+"
    if hundredths == 0:
        return f"{sign}<0.01 %"
    return f"{sign}{hundredths // 100}.{hundredths % 100:02d} %"


def spent(report: CounterReport) -> list[tuple[str, ...]]:
    return [
        (name, f"{s.milliseconds / 1000:.1f} s", human(s.peak_bytes, "B", places=1) if s.peak_bytes else "?")
        for name, s in report.spent.items()
    ]


def printed(report: CounterReport) -> Iterable[str]:
    return (
        f"{o.name} = {o.judgement.claimed}: printed by {', '.join(o.printed_by)}" for o in report.own if o.printed_by
    )


def counters_text(report: CounterReport, width: int | None = None) -> str:
    """All tables as plain text, for the console."""
    lines = [
        f"{report.target.title} at {report.workload.name}: third-party counters beside the truth",
        f"model: {model_line(report.target)}",
        f"workload: {workload_line(report.workload)}",
        counted_line(report.target, report.workload),
        "",
    ]
    for title, rows, shown in groups(report):
        lines += [title, *aligned(HEAD, [tuple(map(visible, r.cells)) for r in rows], 3, width)]
        lines += [f"  {r.name}: {r.remark}" for r in rows if r.remark]
        lines += [f"  {r.name}: {amount:+,}  {why}" for r in rows if shown for amount, _, why, _ in r.causes]
        lines.append("")
    if report.spent:
        lines += ["Time and memory", *aligned(SPENT, spent(report), 2, width), ""]
    lines += [*report.compared.remarks, *printed(report)]
    return filled(lines, width).rstrip("\n") + "\n"
