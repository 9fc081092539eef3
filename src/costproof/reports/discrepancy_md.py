"""``discrepancy.md``: how the sources compare, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from costproof.compare.align import order
from costproof.compare.verdict import next_step
from costproof.reports.counters_md import counters_section
from costproof.reports.describe import foot, head, run_line
from costproof.reports.escape import code, details, markdown, table
from costproof.reports.numbers import exact, plural, some
from costproof.reports.verdicts import open_findings, tally

if TYPE_CHECKING:
    from costproof.compare.findings import Discrepancy, Finding
    from costproof.ledger.capture import Capture
    from costproof.reports.report import Report
from costproof.ledger.run import RunRecord

MAX_ROWS: Final = 15
"""Rows of the first table."""
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
    title = f"How the counts of {markdown(found.target.name)} compare"
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
        *(counters_section(found.counters) if found.counters is not None else []),
        *_foot(found, capture.run),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _overview(found: Discrepancy) -> list[str]:
    sums = [f for f in found.findings if f.level in ("total", "stage") and f.metric in _HEADLINE]
    metrics = {m: i for i, m in enumerate(_HEADLINE)}
    stages = {s: i for i, s in enumerate(found.target.stages)}
    sums.sort(key=lambda f: (metrics[f.metric], stages.get(f.stage, len(stages)), f.id))
    sources = sources_of(found)
    if len(sums) > MAX_ROWS:
        # An open difference must not fall off the end of a short table.
        sums.sort(key=lambda f: f.status in ("exact", "not-executed"))
    rows = [_row(f, sources) for f in sums[:MAX_ROWS]]
    head = ("Metric", "Stage", *map(markdown, sources), "Delta", "Residual", "Status")
    more = f" The first {MAX_ROWS} of {len(sums)} sums; all are below." if len(sums) > MAX_ROWS else ""
    return [*table(head, "ll" + "r" * len(sources) + "rrl", rows), "", f"{tally(found)}.{more}"]


def _row(f: Finding, sources: list[str]) -> tuple[str, ...]:
    values = values_of(f, sources)
    return code(f.metric), markdown(f.stage), *values, exact(f.delta), exact(f.residual), status_words(f)


def values_of(f: Finding, sources: list[str]) -> tuple[str, ...]:
    """The cells of the sources."""
    return tuple(exact(f.values[s]) if s in f.values else "—" for s in sources)


def status_words(f: Finding) -> str:
    """The status, loud where something is open."""
    return f"**{f.status}**" if f.status in ("unexplained", "unsupported") else str(f.status)


def sources_of(found: Discrepancy) -> list[str]:
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
    sources = sources_of(found)
    lines: list[str] = []
    for stage in found.target.stages:
        mine = [f for f in found.findings if f.stage == stage and f.level == "module"]
        if not mine:
            continue
        rows = [(code(f.id.removeprefix(stage)), exact(f.count), *values_of(f, sources), status_words(f)) for f in mine]
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
            f"{plural(op.count, 'call')}, at most {exact(op.bound_flops)} FLOP: {markdown(op.why)}"
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


def _foot(found: Discrepancy, run: RunRecord | None) -> list[str]:
    ran = run_line(run)
    return [*foot(found.conventions, found.environment, [_MEANING, ""]), *(["", markdown(ran)] if ran else [])]
