"""Report how the counts of the sources compare, as a full document and as a short comment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costproof.compare.align import order
from costproof.compare.findings import Cause, Discrepancy, Finding
from costproof.compare.verdict import next_step
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import at_most
from costproof.ledger.plural import plural, verb
from costproof.reports.counters import section as counters_section
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Details,
    Document,
    DocumentSection,
    Form,
    Items,
    Prose,
    Status,
    Table,
    code_list,
    conventions_foot,
    subject_lines,
)
from costproof.reports.markdown import MarkdownPrinter
from costproof.views.describe import run_line
from costproof.views.numbers import exact, truncate
from costproof.views.results import Results, open_findings, tally

MAX_ROWS: Final = 15
"""Maximum number of rows of the first table and of the comment."""
LIMIT: Final = 65_536
"""Maximum number of characters of the comment, below GitHub's limit."""
_MAX_REASONS: Final = 5
_LONGEST: Final = 160
MAX_OPEN: Final = 50
"""Maximum number of open findings in the text; the JSON file has all."""
MAX_EVIDENCE: Final = 6
_MEANING: Final = (
    "Delta is the first source minus its reference; residual is delta minus the accepted causes. "
    "Counts have no tolerance."
)
_HEADLINE: Final = ("flops", "params", "calls")


def document(report: Results, form: Form) -> Document:
    """Return the whole comparison: sums, open and explained findings, every module, coverage, and checks of the run."""
    capture, found = report.capture, report.discrepancy
    sums = [f for f in found.findings if f.level in _levels(found) and f.metric in _HEADLINE]
    metrics = {m: i for i, m in enumerate(_HEADLINE)}
    stages = {s: i for i, s in enumerate(found.target.stages)}
    sums.sort(key=lambda f: (metrics[f.metric], stages.get(f.stage, len(stages)), f.id))
    sources = _sources(found)
    if len(sums) > MAX_ROWS:
        # An open difference must not fall off the end of a short table.
        sums.sort(key=lambda f: f.status in ("exact", "not-executed"))
    head = ("Metric", "Stage", *sources, "Delta", "Residual", "Status")
    rows: list[tuple[Cell, ...]] = [
        (Code(f.metric), f.stage, *_values(f, sources), exact(f.delta), exact(f.residual), Status(f.status))
        for f in sums[:MAX_ROWS]
    ]
    more = f" The first {MAX_ROWS} of {len(sums)} sums; all are below." if len(sums) > MAX_ROWS else ""
    body: list[Block] = [Table(head, "ll" + "r" * len(sources) + "rrl", rows), f"{tally(found)}.{more}"]
    if found.incomplete:
        reasons = (*found.incomplete, *filter(None, [next_step(found)]))
        body.append(DocumentSection("Why the result is incomplete", [Items(reasons)]))
    body += [
        *_open(found),
        *_explained(found),
        *_modules(found),
        *_coverage(found),
        *_tracers(capture),
        *_judges(capture, found),
    ]
    body += [counters_section(found.counters)] if found.counters is not None else []
    foot = conventions_foot(found.conventions, found.environment, before=[_MEANING])
    foot += [ran] if (ran := run_line(capture.run)) else []
    title = f"How the counts of {found.target.title} compare"
    return Document(
        title, body, found.verdict, report.sentence, subject_lines(found.target, found.workload, form), foot
    )


def _levels(found: Discrepancy) -> tuple[str, ...]:
    """Return the levels at which sums are listed; for a single stage only the total, since both are equal."""
    return ("stage",) if len(found.target.stages) == 1 else ("total", "stage")


def _values(f: Finding, sources: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a finding's row with the count of each source."""
    return tuple(exact(f.values[s]) if s in f.values else "—" for s in sources)


def _sources(found: Discrepancy) -> list[str]:
    """Return the sources of a comparison, in the order of the table columns."""
    return list(order({s for f in found.findings for s in f.values}))


def _open(found: Discrepancy) -> list[Block]:
    bad = open_findings(found)
    body = _findings(bad)
    title = plural(len(bad), "open finding")
    return [] if not bad else [Details(title, body) if len(bad) > 5 else DocumentSection(title, body)]


def _findings(found: Sequence[Finding]) -> list[Block]:
    """Return the blocks of the first findings, and a line with the number of omitted ones."""
    more = len(found) - MAX_OPEN
    items = Items(tuple(item for f in found[:MAX_OPEN] for item in finding(f)))
    return [items, *([f"… and {plural(more, 'more finding')} in the JSON file."] if more > 0 else [])]


def finding(f: Finding) -> list[Prose]:
    """Return a finding with its causes and their evidence; the items below it are indented."""
    values = ", ".join(f"{s} {exact(v)}" for s, v in sorted(f.values.items()))
    many = f", {f.count} modules" if f.count != 1 else ""
    first = f" ({f.status}{many}): {values}; delta {exact(f.delta)}, residual {exact(f.residual)}"
    items: list[Prose] = [(Code(f.id), first)]
    if f.error_expression:
        items.append(("  ", "analytic minus static, one module: ", Code(f.error_expression)))
    for cause in f.causes:
        items += [("  ", *_cause(cause)), *_evidence(cause.evidence, "    ")]
    return [*items, *_evidence(f.evidence, "  ")]


def _cause(cause: Cause) -> tuple[str, ...]:
    size = (": ", Code(cause.expression)) if cause.expression else ()
    named = "" if cause.accepted else ", names a defect"
    note = f" ({cause.note})" if cause.note else ""
    return ("cause ", Code(cause.kind), f" {exact(cause.amount)}{named}", *size, note)


def _evidence(names: Sequence[str], indent: str) -> list[Prose]:
    more = len(names) - MAX_EVIDENCE
    shown = code_list(names[:MAX_EVIDENCE])
    return [(indent, "seen in ", *shown, f" and {more} more" if more > 0 else "")] if names else []


def _explained(found: Discrepancy) -> list[Block]:
    named = [f for f in found.findings if f.causes and f.status in ("explained", "exact")]
    with_amount = [f for f in named if f.delta]
    same = [f for f in named if not f.delta]
    body = _findings(with_amount) if with_amount else []
    if same:
        kinds = code_list(sorted({c.kind for f in same for c in f.causes}))
        body.append((f"{plural(len(same), 'comparison')} with the same number under other names: ", *kinds, "."))
    return [Details(plural(len(with_amount), "explained difference"), body)] if body else []


def _modules(found: Discrepancy) -> list[Block]:
    """Return a table of the modules of each stage."""
    sources = _sources(found)
    head, align = ("Comparison", "Modules", *sources, "Status"), "lr" + "r" * len(sources) + "l"
    made: list[Block] = []
    for stage in found.target.stages:
        mine = [f for f in found.findings if f.stage == stage and f.level == "module"]
        rows: list[tuple[Cell, ...]] = [
            (Code(f.id.removeprefix(stage)), exact(f.count), *_values(f, sources), Status(f.status)) for f in mine
        ]
        made += [Details(f"{stage}: {plural(len(mine), 'comparison')}", [Table(head, align, rows)])] if rows else []
    return made


def _coverage(found: Discrepancy) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    unknown: list[Prose] = []
    for source, cover in sorted(found.coverage.items()):
        ops = cover.unknown_ops
        known = exact(cover.known_flops) if cover.known_flops is not None else "—"
        rows.append((source, known, exact(cover.bound_flops) if ops else "0", exact(len(ops)), ", ".join(cover.stages)))
        for op in ops:
            work = f"{plural(op.count, 'call')}, {at_most(op.bound_flops)}: {op.why}"
            unknown.append((f"{source}: ", Code(op.op), " in ", Code(op.module), f" ({op.stage}), {work}"))
        unknown += [(f"{source}: no number for ", Code(node)) for node in cover.unknown_nodes[:MAX_OPEN]]
    notes = tuple(f"{source}: {note}" for source, cover in sorted(found.coverage.items()) for note in cover.notes)
    head = ("Source", "Known FLOPs", "Unknown, at most", "Unknown operators", "Stages")
    body: list[Block] = [Table(head, "lrrrl", rows)]
    body += [Items(tuple(unknown))] if unknown else []
    body += [Items(notes)] if notes else []
    return [Details("Coverage", body)] if rows else []


def _tracers(capture: Capture) -> list[Block]:
    check = capture.trace_check
    if check is None:
        return []
    compared = f"{plural(check.modules_compared, 'module')} and {plural(check.edges_compared, 'edge')} compared, "
    body: list[Block] = [compared + f"{plural(len(check.differences), 'difference')}."]
    body += [Items(tuple(check.differences[:MAX_OPEN]))] if check.differences else []
    return [Details("The two dynamic tracers", body)]


def _judges(capture: Capture, found: Discrepancy) -> list[Block]:
    judges = found.judges
    if judges is None:
        return []
    differing = sum(f.count for f in found.findings if f.level == "judge")
    judged = ("flops",) if capture.judge is None else capture.judge.metrics
    by_rules = ", ".join(title.title for name, title in METRICS.items() if name not in ("calls", *judged))
    compared = (
        f"{plural(judges.agreed, 'count')} of operators in the run, {exact(judges.flops)} FLOPs in all, "
        f"{verb(judges.agreed)} the same by torch's own formulas at the dispatcher; "
        f"{plural(differing, 'other')} {verb(differing, 'differs', 'differ')}."
    )
    body: list[Block] = [compared] if judges.agreed or differing else []
    body += [f"Operators that it counted: {', '.join(judges.operators)}."] if judges.operators else []
    body += [
        "One judge alone, the rules and the accounting that static and dynamic share; formulas are compared with them:"
    ]
    body += [Items((*judges.alone, by_rules))]
    return [Details("The second judge of the run", body)]


def discrepancy_short(report: Results) -> str:
    """Return a comment: the verdict, open and explained findings (largest first), and the number of omitted ones."""
    for rows in range(MAX_ROWS, -1, -1):
        text = MarkdownPrinter().document(_short(report, rows))
        if len(text) < LIMIT:
            break
    return text


def _short(report: Results, most: int) -> Document:
    found, sources = report.discrepancy, _sources(report.discrepancy)
    target = replace(found.target, name=truncate(found.target.name, _LONGEST))
    workload = replace(found.workload, name=truncate(found.workload.name, _LONGEST))
    reasons = [*found.incomplete[1 : _MAX_REASONS + 1], *filter(None, [next_step(found)])]
    body: list[Block] = [Items(tuple(truncate(r, _LONGEST) for r in reasons))] if reasons else []
    rows: list[tuple[Cell, ...]] = []
    for f in _picked(found)[:most]:
        causes = ", ".join(dict.fromkeys(c.kind for c in f.causes))
        status = Status(f.status, f" ({causes})" if causes else "")
        rows.append((Code(truncate(f.id, _LONGEST)), *_values(f, sources), exact(f.delta), exact(f.residual), status))
    head = ("Comparison", *sources, "Delta", "Residual", "Status")
    body += [Table(head, "l" + "r" * len(sources) + "rrl", rows)] if rows else []
    left = plural(len(found.findings) - len(rows), "comparison")
    body.append(f"{tally(found)}. Left out here: {left}, evidence, coverage and conventions; discrepancy.md has them.")
    sentence = truncate(report.sentence, 4 * _LONGEST)
    return Document(
        f"{target.title}: {found.verdict}", body, found.verdict, sentence, subject_lines(target, workload, "md")
    )


def _picked(found: Discrepancy) -> list[Finding]:
    """Return the findings of a comment: open ones and explained ones by size, then the sums of FLOPs."""
    bad = open_findings(found)
    named = [f for f in found.findings if f.delta and f.status == "explained"]
    sums = [f for f in found.findings if f.level in _levels(found) and f.metric == "flops"]
    ranked = [*bad, *sorted(named, key=lambda f: (-abs(f.delta or 0), f.id)), *sums]
    return list({f.id: f for f in ranked}.values())
