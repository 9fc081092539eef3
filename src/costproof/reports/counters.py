"""Other people's counters and numbers beside the truth: tables, causes, the same as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from costproof.claims import Judgement
from costproof.claims.types import TOTAL
from costproof.compare.findings import CAUSES, CounterComparison, CounterFinding, CounterTool
from costproof.ledger.conventions import Conventions
from costproof.ledger.counter import Spent
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload
from costproof.reports.escape import code, details, markdown, table, visible
from costproof.reports.numbers import exact, human, plural, share


@dataclass(frozen=True, slots=True)
class OwnNumber:
    """A number that the user has from somewhere, held against the truth as ``costproof check`` does."""

    name: str
    unit: str
    """``flop`` or ``mac`` as the user states it; empty if that is not known."""
    judgement: Judgement
    printed_by: tuple[str, ...] = ()
    """Counters that print this very number: ``fvcore on sam[crops]``."""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to explain."""
        return self.judgement.status in ("right", "explained")


@dataclass(frozen=True, slots=True)
class CounterReport:
    """All counters on one target and workload. Decode is one step at the first context."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    compared: CounterComparison
    spent: dict[str, Spent] = field(default_factory=dict)
    """By counter, what it needed."""
    own: tuple[OwnNumber, ...] = ()


COUNTERS: Final = FileKind(name="costproof/counters", version=(1, 0), type=CounterReport)

MAX_ROWS: Final = 15
"""Rows of the section in another report."""
_MOST_CAUSES: Final = 3
_NONE: Final = "—"
_HEAD: Final = (
    "counter", "version", "unit", "value", "truth", "in FLOP", "error", "covers", "residual", "verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the table, and what is said below it."""

    name: str
    cells: tuple[str, ...]
    causes: tuple[tuple[int, str, str, str], ...]
    """(amount, cause, why, for example)"""
    remark: str
    """What went wrong, or stays open; empty if nothing."""


def counters_text(report: CounterReport) -> str:
    """For the console."""
    lines = [f"{report.target.name} at {report.workload.name}: counters beside the truth", ""]
    for title, rows, shown in _groups(report):
        lines += [title, *_aligned(_HEAD, [r.cells for r in rows], 3)]
        lines += [f"  {r.name}: {visible(r.remark)}" for r in rows if r.remark]
        lines += [f"  {r.name}: {amount:+,}  {visible(why)}" for r in rows if shown for amount, _, why, _ in r.causes]
        lines.append("")
    if report.spent:
        lines += ["what they needed", *_aligned(_SPENT, _spent(report), 2), ""]
    lines += [*report.compared.checked, *_printed(report)]
    return "\n".join(lines).rstrip() + "\n"


def counters_md(report: CounterReport) -> str:
    """A page."""
    lines = [f"# Counters that people use, on {markdown(report.target.name)} at {markdown(report.workload.name)}", ""]
    lines += [
        "Every tool ran on the same inputs, on the meta device, in a process of its own.",
        "`value` is what it prints, in its own unit; `error` compares it in FLOP with our own count of the same",
        "forward. Decode is one step.",
        "",
    ]
    for title, rows, first in _groups(report):
        shown = [tuple(_md_cell(h, c) for h, c in zip(_HEAD, r.cells, strict=True)) for r in rows]
        remarks = [f"- {code(r.name)}: {markdown(r.remark)}" for r in rows if r.remark]
        body = [*table(_HEAD, "lllrrrrrrl", shown), "", *remarks, *([""] if remarks else []), *_causes(rows)]
        lines += [f"## {title}", "", *body] if first else details(title, body)
    lines += ["## The tools", "", *table(_TOOLS, "lllll", [_tool(t) for t in report.compared.tools]), ""]
    if report.spent:
        rows_ = [(code(name), *rest) for name, *rest in _spent(report)]
        lines += [*table(_SPENT, "lrr", rows_), ""]
    lines += [f"- {markdown(line)}" for line in (*report.compared.checked, *_printed(report))]
    used = {c.kind for f in report.compared.findings for c in f.causes}
    lines += ["", *(f"- {code(kind)}: {markdown(CAUSES[kind])}" for kind in sorted(used))]
    return "\n".join(lines).rstrip() + "\n"


def _md_cell(head: str, text: str) -> str:
    return code(text) if head in ("counter", "version") and text != _NONE else markdown(text)


def _causes(rows: Sequence[_Row]) -> list[str]:
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
        return details("Other counters: none", [f"- {markdown(line)}" for line in compared.checked])
    head = ("counter", "unit", "value", "truth", "error", "residual", "verdict", "largest causes")
    rows = []
    for found in compared.totals[:MAX_ROWS]:
        row = _tool_row(compared, found)
        causes = [f"{amount:+,} {why}" for amount, _, why, _ in row.causes[:_MOST_CAUSES]]
        causes += [f"{len(row.causes) - _MOST_CAUSES} more"] if len(row.causes) > _MOST_CAUSES else []
        said = [row.remark] if row.remark else causes
        cells = dict(zip(_HEAD, row.cells, strict=True))
        rows.append((code(row.name), *(markdown(cells[h]) for h in head[1:-1]), markdown("; ".join(said))))
    more = len(compared.totals) - MAX_ROWS
    verdicts = [f.verdict for f in compared.totals]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    body = [
        "Other people's counters on the same forwards, decode one step; no part of the verdict above.",
        "",
        *table(head, "llrrrrll", rows),
        "",
        *([f"… and {more} more in counters.json.", ""] if more > 0 else []),
        *(f"- {markdown(line)}" for line in compared.checked),
    ]
    return details(f"Other counters: {plural(len(verdicts), 'tool')}, {counts}", body)


def _groups(report: CounterReport) -> list[tuple[str, list[_Row], bool]]:
    """Title, rows, and whether they stand first, with causes on the console: sums, and places of own numbers."""
    compared = report.compared
    places: dict[tuple[str, str], list[_Row]] = {}
    for found in compared.findings:
        places.setdefault((found.stage, found.invocation), []).append(_tool_row(compared, found))
    calls = {s: [c for stage, c in places if stage == s] for s, _ in places}
    own: dict[tuple[str, str], list[_Row]] = {}
    for number in report.own:
        j = number.judgement
        only = calls.get(j.stage, [])
        # A stage that runs once is that run.
        call = only[0] if not j.invocation and len(only) == 1 else j.invocation
        own.setdefault((j.stage, call), []).append(_own_row(number))
    sums = [_tool_row(compared, f) for f in compared.totals] + own.pop((TOTAL, ""), [])
    found_groups = [("All that was counted", sums, True)] if sums else []
    for place in dict.fromkeys((*places, *own)):
        stage, call = place
        mine = own.get(place, [])
        rows = [*places.get(place, []), *mine]
        found_groups.append((f"{stage}[{call}]" if call else f"{stage}, all invocations", rows, bool(mine)))
    return found_groups


def _tool_row(compared: CounterComparison, found: CounterFinding) -> _Row:
    tool = compared.tool(found.counter)
    stays = f"{exact(found.residual)} stays unexplained" if found.residual else ""
    return _Row(
        found.counter,
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
    )


def _own_row(number: OwnNumber) -> _Row:
    j = number.judgement
    middle = (j.low + j.high) // 2 * (2 if number.unit == "mac" else 1)
    in_flop = middle if number.unit else None
    steps = j.explanations[0].steps if j.explanations else ()
    said = [f"{exact(j.residual)} stays unexplained"] if j.residual else []
    said += [j.note] if j.note else []
    if len(j.explanations) > 1:
        said.append(f"{len(j.explanations) - 1} more sets of causes fit as well")
    return _Row(
        number.name,
        (
            number.name,
            _NONE,
            number.unit or "not said",
            j.claimed,
            human(j.truth, "FLOP"),
            human(in_flop, "FLOP"),
            _error(in_flop, j.truth),
            _NONE,
            exact(j.residual),
            j.status,
        ),
        tuple((s.amount, s.cause, s.what, ", ".join(s.evidence[:1])) for s in steps),
        "; ".join(said),
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


_TOOLS: Final = ("counter", "package", "version", "tried with", "comes with")


def _tool(tool: CounterTool) -> tuple[str, ...]:
    """What ran, and whether it is a version that the adapter was tried with."""
    version = tool.version or "not installed"
    known = tool.version is None or tool.version.partition("+")[0] in tool.info.tried
    shown = version if known else f"{version}, not tried"
    info = tool.info
    return code(info.name), code(info.package), markdown(shown), markdown(info.tried_text), code(info.extra)


_SPENT: Final = ("counter", "time", "memory")


def _spent(report: CounterReport) -> list[tuple[str, ...]]:
    return [
        (name, f"{s.milliseconds / 1000:.1f} s", human(s.peak_bytes, "B", places=1) if s.peak_bytes else "?")
        for name, s in report.spent.items()
    ]


def _printed(report: CounterReport) -> Iterable[str]:
    return (
        f"{o.name} = {o.judgement.claimed}: printed by {', '.join(o.printed_by)}" for o in report.own if o.printed_by
    )


def _aligned(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int) -> list[str]:
    grid = [head, *(tuple(visible(c) for c in r) for r in rows)]
    widths = [max(len(r[i]) for r in grid) for i in range(len(head))]
    return [
        "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in grid
    ]
