"""Derive the verdict on a capture: one word, a sentence and an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from costproof.compare.findings import ComparisonVerdict, Discrepancy, Finding, GivenBy, SourceCoverage
from costproof.ledger.capture import Capture
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK, worst_exit
from costproof.ledger.metrics import OF_CHECKPOINT, PROVEN
from costproof.ledger.node import NO_RULE, exact_sum, known_part, rule_wanted, unknown_clause
from costproof.ledger.plural import plural, verb
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.workload import cache_counted, quantised_clause

_EXIT: Final[dict[ComparisonVerdict, int]] = {
    "exact": EXIT_OK,
    "explained": EXIT_OK,
    "unexplained": EXIT_FINDINGS,
    "incomplete": EXIT_INCOMPLETE,
}


def coverage(capture: Capture) -> dict[str, SourceCoverage]:
    """Return how much of the model each source has counted, by source."""
    return {
        ledger.source: SourceCoverage(
            known_flops=known_part(ledger.nodes, "flops") if "flops" in ledger.metrics else None,
            bound_flops=exact_sum(o.bound_flops for o in ledger.unknown_ops),
            unknown_ops=ledger.unknown_ops,
            unknown_nodes=tuple(f"{n.id}#{m}" for n in ledger.nodes for m, v in sorted(n.costs.items()) if v is None),
            stages=ledger.stages,
            metrics=ledger.metrics,
            notes=ledger.notes,
        )
        for ledger in capture.ledgers
    }


def gaps(capture: Capture, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the reasons why a capture is incomplete, one sentence each; empty if it is complete."""
    found = []
    for ledger in capture.ledgers:
        for name, why in dict.fromkeys((o.op, o.why) for o in ledger.unknown_ops):
            clause = unknown_clause([o for o in ledger.unknown_ops if (o.op, o.why) == (name, why)])
            said = f"has no rule ({clause})" if why == NO_RULE else f"is not counted ({clause}): {why}"
            found.append(f"{ledger.source}: operator {name} {said}")
    sources = {x.source for x in capture.ledgers}
    found += _uncounted_formats(capture)
    if len(sources & set(ALL_SOURCES)) < 2:
        found.append(f"only {', '.join(sorted(sources))} counted: a proof needs two of {', '.join(ALL_SOURCES)}")
        found += (f"{source}: {why}" for source, why in capture.lacking.items())
        return tuple(found)
    found += capture.failed
    found += _not_compared(capture, findings)
    for f in findings:
        if f.level == "stage" and f.metric in PROVEN and f.status.endswith("-only"):
            found.append(f"{f.stage}: {f.metric} come from only one source ({next(iter(f.values))})")
        if f.level == "module" and f.status == "unsupported" and None in f.values.values():
            unknown = ", ".join(s for s, v in f.values.items() if v is None)
            found.append(f"{f.id} is unknown to {unknown}")
    return tuple(found)


def _uncounted_formats(capture: Capture) -> Iterator[str]:
    """Yield why a report on a quantised checkpoint is incomplete; nothing if it is complete.

    Either fewer than two sources have the metrics of quantised weights (:data:`.metrics.OF_CHECKPOINT`), or the bytes
    of a quantised cache are counted in the dtype of the run.
    """
    own = [x for x in capture.ledgers if x.source in ALL_SOURCES]
    said = quantised_clause(capture.target, capture.workload)
    alone = [m for m in OF_CHECKPOINT if sum(m in x.metrics for x in own) < 2]
    if said and "cache" in cache_counted(capture.target, capture.workload).quantised:
        yield said
    elif said and alone:
        yield f"{said}; fewer than two sources give {', '.join(alone)}"


def _not_compared(capture: Capture, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a sentence for each metric with fewer than two sources, and each stage or call that no source counted."""
    rows = [f for f in findings if f.level == "module"]
    if not rows:
        yield "nothing was counted: there is no quantity to compare"
        return
    own = [x for x in capture.ledgers if x.source in ALL_SOURCES]
    for metric in sorted(PROVEN):
        if sum(metric in x.metrics for x in own) < 2:
            yield f"{metric} are not compared: fewer than two sources give them"
    counted = {f.stage for f in rows if f.metric in PROVEN}
    yield from (f"{stage}: a stage of the target that no source counted" for stage in capture.target.stages
                if stage not in counted)  # fmt: skip
    called = {(f.stage, f.invocation) for f in rows if f.metric == "calls"}
    for call in capture.invocations:
        if call.stage in counted and (call.stage, call.id) not in called:
            yield f"{call.stage}[{call.id}]: an invocation in which no source counted a call"


def next_step(d: Discrepancy) -> str | None:
    """Return the fix that would make the capture complete, if only an operator rule is missing."""
    return rule_wanted(op for cover in d.coverage.values() for op in cover.unknown_ops)


def verdict_of(findings: Sequence[Finding], incomplete: Sequence[str]) -> ComparisonVerdict:
    """Return the worst verdict that applies, in the order unexplained, incomplete, explained, exact."""
    statuses = {f.status for f in findings}
    if "unexplained" in statuses:
        return "unexplained"
    if incomplete:
        return "incomplete"
    return "explained" if "explained" in statuses else "exact"


def exit_code(d: Discrepancy) -> int:
    """Return the exit code: 0 if all is exact or explained, 1 for findings, else 3: incomplete or a counter failed."""
    failed = d.counters is not None and d.counters.incomplete
    return worst_exit(_EXIT[d.verdict], EXIT_INCOMPLETE if failed else EXIT_OK)


def verdict_words(d: Discrepancy) -> str:
    """Return the verdict as printed: ``unexplained, incomplete`` if something is also unknown."""
    return f"{d.verdict}, incomplete" if d.verdict == "unexplained" and d.incomplete else d.verdict


def given_by(findings: Sequence[Finding]) -> tuple[GivenBy, ...]:
    """Return the number of compared quantities for each set of sources that count them, largest set first."""
    found: Counter[tuple[str, ...]] = Counter()
    for f in findings:
        if f.level == "module":
            sources = tuple(s for s in ALL_SOURCES if f.values.get(s) is not None)
            found[sources] += f.count if sources else 0
    ranked = sorted(found.items(), key=lambda item: (-len(item[0]), -item[1], item[0]))
    return tuple(GivenBy(sources, quantities) for sources, quantities in ranked if quantities)


def verdict_sentence(d: Discrepancy) -> str:
    """Return the verdict as one sentence for reports."""
    modules = [f for f in d.findings if f.level in ("module", "trace", "judge")]
    compared = [f for f in modules if f.status in ("exact", "explained", "unexplained")]
    sources = [s for s in ALL_SOURCES if s in d.coverage]
    every, shares = _shares(d, sources)
    who = _listed(sources) if every else "the sources"
    whole = plural(sum(f.count for f in compared), "quantity", "quantities")
    unexplained = [f for f in compared if f.status == "unexplained"]
    explained = [f for f in compared if f.status == "explained"]
    wrong, named = sum(f.count for f in unexplained), sum(f.count for f in explained)
    worst = _worst(unexplained)
    differ = verb(wrong, "differs", "differ")
    more = f" and {len(d.incomplete) - 1} more" if len(d.incomplete) > 1 else ""
    lacking = f"Incomplete: {d.incomplete[0]}{more}." if d.incomplete else ""
    if d.verdict == "incomplete":
        return lacking
    if d.verdict == "unexplained":
        about = [f.evidence[0] for f in d.findings if f.level == "source" and f.evidence]
        other = f" and {len(about) - 1:,} more" if len(about) > 1 else ""
        if about and not wrong:
            none = f"of {whole} compared, none differs without an accepted cause{shares}."
            return f"Unexplained: {about[0]}{other}; {none} {lacking}".rstrip()
        worst += f"; {about[0]}{other}" if about else ""
        differing = f"of {whole} compared, {wrong:,} {differ} without an accepted cause{worst}{shares}."
        return f"Unexplained: {differing} {lacking}".rstrip()
    if d.verdict == "explained":
        kinds = sorted({c.kind.replace("_", " ") for f in explained for c in f.causes if c.accepted and c.amount})
        return (
            f"Explained: {who} agree to the integer on all but {named:,} of {whole}{shares}; "
            f"{verb(named, 'that one has', 'those have')} "
            f"a named cause ({', '.join(kinds)}) and residual 0."
        )
    return f"Exact: {who} agree to the integer on all {whole}{shares}."


def _listed(sources: Sequence[str]) -> str:
    return " and ".join(", ".join(sources).rsplit(", ", 1))


def _shares(d: Discrepancy, sources: Sequence[str]) -> tuple[bool, str]:
    """Return whether all sources count every compared quantity, and as text how many each set of sources counts."""
    compared = [g for g in d.given_by if len(g.sources) > 1]
    every = bool(compared or not d.given_by) and all(len(g.sources) == len(sources) for g in compared)
    shared = [f"{g.quantities:,} from {_listed(g.sources)}" for g in compared]
    alone = [f"{g.quantities:,} more from {g.sources[0]} alone" for g in d.given_by if len(g.sources) == 1]
    parts = [] if every else [", ".join(shared) or "none"]
    parts += [f"{', '.join(alone)}, compared with nothing"] if alone else []
    parts += [f"{stage} not counted by {_listed(lacking)}" for stage, lacking in _uncounted(d, sources)]
    return every, f" ({'; '.join(parts)})" if parts else ""


def _uncounted(d: Discrepancy, sources: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (stage, sources that count calls of other stages, but none of this one)."""
    counted: dict[str, set[str]] = {}
    for f in d.findings:
        if f.level == "module" and f.metric == "calls":
            counted.setdefault(f.stage, set()).update(s for s, value in f.values.items() if value is not None)
    every = set().union(*counted.values())
    for stage, by in counted.items():
        if lacking := [s for s in sources if s in every - by]:
            yield stage, lacking


def _worst(unexplained: Sequence[Finding]) -> str:
    if not unexplained:
        return ""
    f = max(unexplained, key=lambda f: (f.metric in PROVEN, abs(f.residual or 0)))
    if f.level == "trace":
        return f"; the largest: {f.evidence[0]}"
    first = next(iter(f.values))
    if f.delta is None:
        return f"; the largest: {f.id}, unknown to {f.reference}"
    if not f.delta:
        return f"; the largest: {f.id}, whose formula differs away from this workload by {f.error_expression}"
    return f"; the largest: {f.id}, {first} - {f.reference} = {f.delta:+,}"
