"""Report the numbers of third-party FLOP counters next to costproof's count, with the causes of every difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costproof.claims.types import TOTAL
from costproof.compare.findings import CAUSES, CounterComparison, CounterFinding, CounterTool
from costproof.ledger.plural import plural
from costproof.reports.document import (
    Block,
    Code,
    Details,
    Document,
    DocumentSection,
    Form,
    Items,
    Note,
    Number,
    Status,
    Strong,
    Table,
    TableRow,
    conventions_foot,
    subject_lines,
)
from costproof.views.counters import CounterReport, OwnNumber
from costproof.views.numbers import exact, human, share

NONE: Final = "—"
HEAD: Final = (
    "counter", "version", "unit", "value", "truth", "in FLOP", "error", "covers", "residual", "verdict",
)  # fmt: skip
_ALIGN: Final = "lllrrrrrrl"
SPENT: Final = ("counter", "time", "memory")
TOOLS: Final = ("counter", "package", "version", "tested versions")
VERDICTS: Final = {0: "explained", 1: "unexplained", 3: "incomplete"}
_METHOD: Final = (
    "Every tool ran on the same inputs, on the meta device, in a process of its own. The value is what it prints, in "
    "its own unit; the error compares it in FLOP with our own count of the same forward. Decode is one step."
)
MAX_ROWS: Final = 15
"""Maximum number of counter rows in the section of another report."""
_MOST_CAUSES: Final = 3


def document(report: CounterReport, form: Form) -> Document:
    """Return the report: the number of each third-party counter next to costproof's count, with causes."""
    about = subject_lines(report.target, report.workload, form)
    tools = Table(TOOLS, "llll", [(Code(name), Code(package), *rest) for name, package, *rest in
                                  map(_tool, report.compared.tools)])  # fmt: skip
    usage = [
        (Code(name), f"{s.milliseconds / 1000:.1f} s", human(s.peak_bytes, "B", places=1) if s.peak_bytes else "?")
        for name, s in report.spent.items()
    ]
    spent = Table(SPENT, "lrr", usage, title="", keys=1)
    same = (
        f"{o.name} = {o.judgement.claimed}: printed by {', '.join(o.printed_by)}" for o in report.own if o.printed_by
    )
    remarks = Items((*report.compared.remarks, *same))
    used = sorted({c.kind for f in report.compared.findings for c in f.causes})
    kinds = Items(tuple((Code(kind), f": {CAUSES[kind]}") for kind in used))
    if form == "text":
        body: list[Block] = []
        for name, figures, first in figure_groups(report):
            body.append(Table(HEAD, _ALIGN, [f.cells for f in figures], title=name))
            lines = [line for f in figures for line in f.lines(causes=False)]
            lines += [line for f in figures if first for line in f.lines(causes=True)]
            body += [Items(tuple(lines))] if lines else []
        body += [DocumentSection("Time and memory", [spent])] if report.spent else []
        title = f"{report.target.title} at {report.workload.name}: third-party counters next to the truth"
        return Document(title, [*body, *remarks.items], about=about)
    title = f"Third-party counters on {report.target.title}"
    if form == "md":
        body = [_METHOD]
        for name, figures, first in figure_groups(report):
            table = Table(HEAD, _ALIGN, [_code_cells(f) for f in figures])
            notes = [(Code(f.name), f": {f.remark}") for f in figures if f.remark]
            parts: list[Block] = [table, *([Items(tuple(notes))] if notes else []), *_causes(figures)]
            body.append(DocumentSection(name, parts) if first else Details(name, parts))
        body += [DocumentSection("The tools", [tools, *([spent] if report.spent else [])])]
        body += [remarks] if remarks.items else []
        return Document(title, [*body, *([kinds] if used else [])], "", counts(report.compared), about)
    *others, verdict = HEAD
    place = ("place", others[0], verdict, *others[1:])  # the verdict where a narrow screen shows it
    rows = [_row(name, f) for name, figures, _ in figure_groups(report) for f in figures]
    table = Table(place, "lllllrrrrrr", rows, noun="figure", searchable=True)
    why = report.compared.incomplete
    body = [DocumentSection("Incomplete", [Items(why)], flagged=True)] if why else []
    body.append(Note(_METHOD))
    body += [
        DocumentSection("Figures", [table], id="figures"),
        DocumentSection("Tools", [tools, *([spent] if report.spent else [])]),
    ]
    body += [DocumentSection("What causes mean", [kinds])] if used else []
    body += [remarks] if remarks.items else []
    foot = conventions_foot(report.conventions, report.environment)
    return Document(title, body, VERDICTS[report.exit_code], f"{counts(report.compared)}.", about, foot)


def section(compared: CounterComparison) -> Details:
    """Return the totals of all third-party counters as a folded section of another report."""
    remarks = Items(compared.remarks)
    if not compared.totals:
        return Details("Third-party counters: none", [remarks])
    head = ("counter", "unit", "value", "truth", "error", "residual", "verdict", "largest causes")
    rows = []
    for found in compared.totals:
        figure = _figure(compared, found)
        causes = [f"{amount:+,} {why}" for amount, _, why, _ in figure.causes[:_MOST_CAUSES]]
        causes += [f"{len(figure.causes) - _MOST_CAUSES} more"] if len(figure.causes) > _MOST_CAUSES else []
        cells = dict(zip(HEAD, figure.cells, strict=True))
        rows.append(
            (
                Code(figure.name),
                *(cells[h] for h in head[1:-1]),
                "; ".join([figure.remark] if figure.remark else causes),
            )
        )
    body: list[Block] = ["Third-party counters on the same forwards, decode one step; no part of the verdict above."]
    body += [Table(head, "llrrrrll", rows, most=MAX_ROWS, noun="counter", rest="counters.json")]
    return Details(f"Third-party counters: {counts(compared)}", [*body, *([remarks] if compared.remarks else [])])


def _code_cells(figure: Figure) -> tuple[str | tuple[str, ...], ...]:
    named = ("counter", "version")
    return tuple(Code(c) if h in named and c != NONE else c for h, c in zip(HEAD, figure.cells, strict=True))


def _causes(figures: Sequence[Figure]) -> list[Block]:
    rows = [
        (Code(f.name), exact(amount), Code(cause), why, Code(where))
        for f in figures for amount, cause, why, where in f.causes
    ]  # fmt: skip
    table = Table(("counter", "amount", "cause", "why", "for example"), "lrlll", rows)
    return [Details(plural(len(rows), "cause"), [table])] if rows else []


def _row(place: str, figure: Figure) -> TableRow:
    name, *middle, verdict = figure.cells
    numbers = (Number(v, shown) for v, shown in zip(figure.values, middle, strict=True))
    causes = [(exact(amount), Code(cause), why, Code(where)) for amount, cause, why, where in figure.causes]
    more: list[Block] = [figure.remark] if figure.remark else []
    more += [Table(("amount", "cause", "why", "for example"), "rlll", causes)] if causes else []
    title = plural(len(causes), "cause") if causes else "What happened"
    return TableRow((place, Strong(name), Status(verdict), *numbers), verdict, tuple(more), title)


def counts(compared: CounterComparison) -> str:
    """Return the number of third-party counters by verdict: ``3 tools, 2 explained, 1 failed``."""
    verdicts = [f.verdict for f in compared.totals]
    return ", ".join([plural(len(verdicts), "tool"), *(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))])


def _tool(found: CounterTool) -> tuple[str, ...]:
    """Return the cells of :data:`TOOLS` for a counter: the version that ran, and whether it is a tested one."""
    info, version = found.info, found.version or "not installed"
    if found.version is not None and found.version.partition("+")[0] not in info.tested:
        version += ", not tested"
    return info.name, info.package, version, info.tested_text


@dataclass(frozen=True, slots=True)
class Figure:
    """Row of the table of third-party counters: a count, the causes of its difference, and a remark."""

    cells: tuple[str, ...]
    """Texts of the row, one for each column of :data:`HEAD`."""
    causes: tuple[tuple[int, str, str, str], ...]
    """Causes of the difference, each as (amount, kind of cause, why it applies, an example)."""
    remark: str
    """The error, or the unexplained rest of the difference; empty if there is neither."""
    values: tuple[int | None, ...]
    """Exact values of the cells between name and verdict; ``None`` for cells that are not integers."""

    def lines(self, *, causes: bool) -> list[str]:
        """Return the lines of text below the table for this row: its causes, or its remark."""
        if causes:
            return [f"{self.name}: {amount:+,}  {why}" for amount, _, why, _ in self.causes]
        return [f"{self.name}: {self.remark}"] if self.remark else []

    @property
    def name(self) -> str:
        """Return the name of the counter, or of the user's number, in this row."""
        return self.cells[0]


def figure_groups(report: CounterReport) -> list[tuple[str, list[Figure], bool]]:
    """Return (title, rows, whether first and with causes) of the tables: the totals, then each call of a stage."""
    compared = report.compared
    places: dict[tuple[str, str], list[Figure]] = {}
    for found in compared.findings:
        places.setdefault((found.stage, found.invocation), []).append(_figure(compared, found))
    calls = {s: [c for stage, c in places if stage == s] for s, _ in places}
    own: dict[tuple[str, str], list[Figure]] = {}
    for number in report.own:
        j = number.judgement
        only = calls.get(j.stage, [])
        # A stage that runs once is that run.
        call = only[0] if not j.invocation and len(only) == 1 else j.invocation
        own.setdefault((j.stage, call), []).append(_own_figure(number))
    sums = [_figure(compared, f) for f in compared.totals] + own.pop((TOTAL, ""), [])
    ordered = [("Total", sums, True)] if sums else []
    for stage, call in dict.fromkeys((*places, *own)):
        theirs, mine = places.get((stage, call), []), own.get((stage, call), [])
        ordered.append((f"{stage}[{call}]" if call else f"{stage}, all calls", [*theirs, *mine], bool(mine)))
    return ordered


def _figure(compared: CounterComparison, found: CounterFinding) -> Figure:
    tool = compared.tool(found.counter)
    stays = f"{exact(found.residual)} stays unexplained" if found.residual else ""
    return Figure(
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


def _own_figure(number: OwnNumber) -> Figure:
    j = number.judgement
    middle = (j.low + j.high) // 2 * (2 if number.unit == "mac" else 1)
    in_flop = middle if number.unit else None
    steps = j.explanations[0].steps if j.explanations else ()
    said = [f"{exact(j.residual)} stays unexplained"] if j.residual else []
    said += [j.note] if j.note else []
    if len(j.explanations) > 1:
        said.append(f"{plural(len(j.explanations) - 1, 'more set of causes fits', 'more sets of causes fit')} as well")
    return Figure(
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
    """Return the error relative to the true count: ``+1.23 %``."""
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
