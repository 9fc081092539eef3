"""``discrepancy.md``, how the sources compare; and ``discrepancy-short.md``, the same for a comment on a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from costproof.compare.align import order
from costproof.compare.verdict import next_step
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import at_most
from costproof.ledger.plural import plural, verb
from costproof.reports.counters import section as counters_section
from costproof.reports.escape import code, details, foot, head, markdown, table
from costproof.reports.markdown import MarkdownPrinter
from costproof.views.describe import run_line
from costproof.views.numbers import cut, exact, some
from costproof.views.verdicts import open_findings, tally

if TYPE_CHECKING:
    from costproof.compare.findings import Discrepancy, Finding
    from costproof.ledger.capture import Capture
    from costproof.reports.report import Report

MAX_ROWS: Final = 15
"""Rows of the first table."""
MAX_SHORT: Final = 15
"""Rows of the short text."""
LIMIT: Final = 65_536
"""Characters that a comment on GitHub may have; the short text has fewer."""
_MAX_REASONS: Final = 5
_LONGEST: Final = 160
MAX_OPEN: Final = 50
"""Open findings written out; the JSON file has all."""
MAX_EVIDENCE: Final = 6
_MEANING: Final = (
    "Delta is the first source minus its reference; residual is delta minus the accepted causes. "
    "Counts have no tolerance."
)
_HEADLINE: Final = ("flops", "params", "calls")


def discrepancy_md(report: Report) -> str:
    """The report."""
    capture, found = report.capture, report.discrepancy
    ran = run_line(capture.run)
    title = f"How the counts of {markdown(found.target.title)} compare"
    lines = [
        *head(title, report.sentence, found.target, found.workload),
        *_overview(found),
        "",
    ]
    if found.incomplete:
        reasons = (*found.incomplete, *filter(None, [next_step(found)]))
        lines += ["## Why the result is incomplete", "", *(f"- {markdown(w)}" for w in reasons), ""]
    lines += [
        *_open(found),
        *_explained(found),
        *_all(found),
        *_coverage(found),
        *_tracers(capture),
        *_judges(found),
        *([*MarkdownPrinter().block(counters_section(found.counters)), ""] if found.counters is not None else []),
        *foot(found.conventions, found.environment, [_MEANING, ""]),
        *(["", markdown(ran)] if ran else []),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _overview(found: Discrepancy) -> list[str]:
    sums = [f for f in found.findings if f.level in _levels(found) and f.metric in _HEADLINE]
    metrics = {m: i for i, m in enumerate(_HEADLINE)}
    stages = {s: i for i, s in enumerate(found.target.stages)}
    sums.sort(key=lambda f: (metrics[f.metric], stages.get(f.stage, len(stages)), f.id))
    sources = _sources(found)
    if len(sums) > MAX_ROWS:
        # An open difference must not fall off the end of a short table.
        sums.sort(key=lambda f: f.status in ("exact", "not-executed"))
    rows = [_row(f, sources) for f in sums[:MAX_ROWS]]
    head = ("Metric", "Stage", *map(markdown, sources), "Delta", "Residual", "Status")
    more = f" The first {MAX_ROWS} of {len(sums)} sums; all are below." if len(sums) > MAX_ROWS else ""
    return [*table(head, "ll" + "r" * len(sources) + "rrl", rows), "", f"{tally(found)}.{more}"]


def _levels(found: Discrepancy) -> tuple[str, ...]:
    """Return the levels of sums; those of the only stage are the totals."""
    return ("stage",) if len(found.target.stages) == 1 else ("total", "stage")


def _row(f: Finding, sources: list[str]) -> tuple[str, ...]:
    values = _values(f, sources)
    return code(f.metric), markdown(f.stage), *values, exact(f.delta), exact(f.residual), _status(f)


def _values(f: Finding, sources: list[str]) -> tuple[str, ...]:
    """The cells of the sources."""
    return tuple(exact(f.values[s]) if s in f.values else "—" for s in sources)


def _status(f: Finding) -> str:
    """The status, loud where something is open."""
    return f"**{f.status}**" if f.status in ("unexplained", "unsupported") else str(f.status)


def _sources(found: Discrepancy) -> list[str]:
    """The sources of a comparison, in the order of columns."""
    return list(order({s for f in found.findings for s in f.values}))


def _open(found: Discrepancy) -> list[str]:
    bad = open_findings(found)
    if not bad:
        return []
    body = _findings(bad, [""])
    title = plural(len(bad), "open finding")
    return details(title, body) if len(bad) > 5 else [f"## {title}", "", *body]


def _findings(found: Sequence[Finding], between: Sequence[str] = ()) -> list[str]:
    """The first of them, written out; a line for the rest."""
    lines = [line for f in found[:MAX_OPEN] for line in (*_finding(f), *between)]
    more = len(found) - MAX_OPEN
    return [*lines, *([f"… and {more} more in the JSON file."] if more > 0 else [])]


def _finding(f: Finding) -> list[str]:
    values = ", ".join(f"{markdown(s)} {exact(v)}" for s, v in sorted(f.values.items()))
    many = f", {f.count} modules" if f.count != 1 else ""
    lines = [f"- {code(f.id)} ({f.status}{many}): {values}; delta {exact(f.delta)}, residual {exact(f.residual)}"]
    if f.error_expression:
        lines.append(f"  - analytic minus static, one module: {code(f.error_expression)}")
    for cause in f.causes:
        size = f": {code(cause.expression)}" if cause.expression else ""
        note = f" ({markdown(cause.note)})" if cause.note else ""
        named = "" if cause.accepted else ", names a defect"
        lines.append(f"  - cause {code(cause.kind)} {exact(cause.amount)}{named}{size}{note}")
        lines += _evidence(cause.evidence, "    ")
    lines += _evidence(f.evidence, "  ")
    return lines


def _evidence(names: tuple[str, ...], indent: str) -> list[str]:
    return [f"{indent}- seen in {some([*map(code, names)], MAX_EVIDENCE)}"] if names else []


def _explained(found: Discrepancy) -> list[str]:
    named = [f for f in found.findings if f.causes and f.status in ("explained", "exact")]
    with_amount = [f for f in named if f.delta]
    body = _findings(with_amount)
    same = [f for f in named if not f.delta]
    if same:
        kinds = sorted({c.kind for f in same for c in f.causes})
        body += [
            "",
            f"{plural(len(same), 'comparison')} with the same number under other names: {', '.join(map(code, kinds))}.",
        ]
    return details(f"{plural(len(with_amount), 'explained difference')}", body) if body else []


def _all(found: Discrepancy) -> list[str]:
    sources = _sources(found)
    lines: list[str] = []
    for stage in found.target.stages:
        mine = [f for f in found.findings if f.stage == stage and f.level == "module"]
        if not mine:
            continue
        rows = [(code(f.id.removeprefix(stage)), exact(f.count), *_values(f, sources), _status(f)) for f in mine]
        head = ("Comparison", "Modules", *map(markdown, sources), "Status")
        title = f"{markdown(stage)}: {plural(len(mine), 'comparison')}"
        lines += details(title, table(head, "lr" + "r" * len(sources) + "l", rows))
    return lines


def _coverage(found: Discrepancy) -> list[str]:
    rows = []
    unknown: list[str] = []
    for source, cover in sorted(found.coverage.items()):
        ops = cover.unknown_ops
        rows.append(
            (
                markdown(source),
                exact(cover.known_flops) if cover.known_flops is not None else "—",
                exact(cover.bound_flops) if ops else "0",
                exact(len(ops)),
                ", ".join(markdown(s) for s in cover.stages),
            )
        )
        unknown += [
            f"- {markdown(source)}: {code(op.op)} in {code(op.module)} ({markdown(op.stage)}), "
            f"{plural(op.count, 'call')}, {at_most(op.bound_flops)}: {markdown(op.why)}"
            for op in ops
        ]
        unknown += [f"- {markdown(source)}: no number for {code(node)}" for node in cover.unknown_nodes[:MAX_OPEN]]
    notes = [f"- {markdown(s)}: {markdown(n)}" for s, c in sorted(found.coverage.items()) for n in c.notes]
    head = ("Source", "Known FLOPs", "Unknown, at most", "Unknown operators", "Stages")
    body = [*table(head, "lrrrl", rows), *([""] if unknown else []), *unknown, *([""] if notes else []), *notes]
    return details("Coverage", body) if rows else []


def _tracers(capture: Capture) -> list[str]:
    check = capture.trace_check
    if check is None:
        return []
    body = [
        (
            f"{plural(check.modules_compared, 'module')} and {plural(check.edges_compared, 'edge')} compared, "
            f"{plural(len(check.differences), 'difference')}."
        ),
        *(f"- {markdown(d)}" for d in check.differences[:MAX_OPEN]),
    ]
    return details("The two dynamic tracers", body)


def _judges(found: Discrepancy) -> list[str]:
    judges = found.judges
    if judges is None:
        return []
    differing = sum(f.count for f in found.findings if f.level == "judge")
    by_rules = [title.title for name, title in METRICS.items() if name not in ("flops", "calls")]
    compared = (
        f"{plural(judges.agreed, 'count')} of operators in the run, {exact(judges.flops)} FLOPs in all, "
        f"{verb(judges.agreed)} the same by torch's own formulas at the dispatcher; "
        f"{plural(differing, 'other')} {verb(differing, 'differs', 'differ')}."
    )
    body = [
        *([compared, ""] if judges.agreed or differing else []),
        "One judge alone, the rules and the accounting that static and dynamic share; formulas are compared with them:",
        "",
        *(f"- {markdown(clause)}" for clause in judges.alone),
        f"- {', '.join(by_rules)}",
    ]
    return details("The second judge of the run", body)


def discrepancy_short(report: Report) -> str:
    """Verdict, what is open or explained (largest first), and what was left out."""
    for rows in range(MAX_SHORT, -1, -1):
        text = _page(report, rows)
        if len(text) < LIMIT:
            break
    return text


def _page(report: Report, most: int) -> str:
    found = report.discrepancy
    picked = _picked(found)
    target = replace(found.target, name=cut(found.target.name, _LONGEST))
    workload = replace(found.workload, name=cut(found.workload.name, _LONGEST))
    lines = head(f"{markdown(target.title)}: {found.verdict}", cut(report.sentence, 4 * _LONGEST), target, workload)
    reasons = [*found.incomplete[1 : _MAX_REASONS + 1], *filter(None, [next_step(found)])]
    lines += [*(f"- {markdown(cut(r, _LONGEST))}" for r in reasons), *([""] if reasons else [])]
    sources = _sources(found)
    rows = [_short_row(f, sources) for f in picked[:most]]
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
    sums = [f for f in found.findings if f.level in _levels(found) and f.metric == "flops"]
    ranked = [*bad, *sorted(named, key=lambda f: (-abs(f.delta or 0), f.id)), *sums]
    return list({f.id: f for f in ranked}.values())


def _short_row(f: Finding, sources: list[str]) -> tuple[str, ...]:
    causes = ", ".join(dict.fromkeys(c.kind for c in f.causes))
    return (
        code(cut(f.id, _LONGEST)),
        *_values(f, sources),
        exact(f.delta),
        exact(f.residual),
        _status(f) + (f" ({markdown(causes)})" if causes else ""),
    )
