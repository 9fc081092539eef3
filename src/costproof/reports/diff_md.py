"""A diff as one comment on a pull request: verdict, a short table, what did it; the rest folded, whole sections cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.plural import plural
from costproof.ledger.workload import ConfigValue
from costproof.reports.diff_words import (
    MAX_CHANGES,
    MAX_ROWS,
    Line,
    amount,
    apart,
    gaps,
    headline,
    lines,
    percent,
    sentence,
    signed,
    told,
    value,
)
from costproof.reports.escape import code, details, markdown, table, unbroken
from costproof.views.describe import counted_lines, versions_line
from costproof.views.numbers import cut, exact, some

if TYPE_CHECKING:
    from costproof.compare.diff.types import Diff, Quantity, RowDiff, Side, SourceDiff

BUDGET: Final = 60_000
"""Bytes of the text. A comment on GitHub may have 65,536 characters and 262,144 bytes; no character is below a byte."""
_REASONS: Final = 5
_NAME: Final = 120
_TERMS: Final = 40
"""Terms of one quantity; the JSON has all."""


def diff_md(found: Diff) -> str:
    """The report; one line where nothing changed."""
    counted = [markdown(line) for line in counted_lines(found.base, found.head)]
    if found.verdict == "same":
        return f"✅ {markdown(sentence(found))} {' '.join(counted)}\n"
    names = dict.fromkeys(code(cut(side.name, _NAME)) for side in (found.base, found.head))
    text = [f"## What a change costs: {' → '.join(names)}", "", f"**{markdown(sentence(found))}**", ""]
    text += [line for one in counted for line in (one, "")]
    if why := gaps(found):
        text += [*(f"- {markdown(cut(w, 300))}" for w in why[:_REASONS]), ""]
    text += [*_overview(found), *_told(found), *_changes(found)]
    text += [line for x in apart(found) for line in (f"{x[:1].upper()}{x[1:]}.", "")]
    left: list[str] = []
    size = sum(len(line.encode()) + 1 for line in text)
    for name, body in _sections(found):
        section = details(name, body)
        more = sum(len(line.encode()) + 1 for line in section)
        # The names of what is left out need room too.
        if size + more > BUDGET - 200 - sum(len(n.encode()) + 2 for n in left) - len(name.encode()):
            left.append(name)
            continue
        text += section
        size += more
    if left:
        text.append(f"Left out, to stay below {BUDGET:,} bytes: {some(left, 20)}. The JSON has everything.")
    return "\n".join(text).rstrip() + "\n"


def _overview(found: Diff) -> list[str]:
    every = list(lines(found))
    rows = [_line(x) for x in every[:MAX_ROWS]]
    more = len(every) - len(rows)
    note = [f"{plural(more, 'more sum')} changed; they are below.", ""] if more > 0 else []
    return [*table(("Stage", "Metric", "Δ %", "Δ", "Base", "Head"), "llrrrr", rows), "", *note] if rows else []


def _line(x: Line) -> tuple[str, ...]:
    """The difference comes first: a telephone shows three columns. Its numbers keep their units beside them."""
    q = x.quantity
    change, before, after = signed(q.delta, x.metric), amount(q.base, x.metric), amount(q.head, x.metric)
    numbers = (percent(q.delta, q.base), f"**{change}**", before, after)
    return markdown(cut(x.stage, _NAME)), EVERY_METRIC[x.metric].title, *map(unbroken, numbers)


def _told(found: Diff) -> list[str]:
    said = [f"- {markdown(what)} {markdown(does)}." for what, does in told(found)]
    first = f"What did it, in {EVERY_METRIC[headline(found)].title}; what changes do together is split evenly:"
    return [first, "", *said, ""] if said else []


def _changes(found: Diff) -> list[str]:
    kinds = (
        ("configuration", found.config), ("workload", found.workload), ("modules", found.modules),
        ("conventions", found.conventions),
        ("libraries", found.libraries), ("implementation", found.implementation), ("formulas", found.formulas),
    )  # fmt: skip
    rows = [
        (code(cut(c.key, _NAME)), _value(c.base), _value(c.head), kind)
        for kind, changes in kinds
        for c in changes.changed
    ]
    head = table(("Changed", "Base", "Head", "Of the"), "llll", rows[:MAX_CHANGES])
    more = len(rows) - MAX_CHANGES
    return [*head, "", *([f"… and {plural(more, 'more change')} in the JSON.", ""] if more > 0 else [])] if rows else []


def _value(plain: ConfigValue) -> str:
    return code("" if plain is None else value(plain))


def _sections(found: Diff) -> Iterator[tuple[str, list[str]]]:
    """What is folded, in the order of worth: title and body."""
    apart = [p for p in found.players if p.why]
    if apart:
        body = [f"- {code(cut(p.name, 4 * _NAME))}: {markdown(p.why)}" for p in apart[:MAX_CHANGES]]
        yield "Keys that are not told apart, because a model with some of them alone is refused", body
    for source, part in found.by_source.items():
        name = "" if source == found.source else f" ({markdown(source)})"
        rows = _sums(part)
        if rows and (not name or _totals(part) != _totals(found.by_source[found.source])):
            yield f"All sums that changed{name}", table(("Stage", "Metric", "Δ", "Base", "Head"), "llrrr", rows)
    for metric in sorted(found.totals, key=lambda m: (m != headline(found), list(EVERY_METRIC).index(m))):
        rows = _terms(found, metric)
        if rows:
            count = sum(len(q.terms) for _, q in _of_metric(found, metric))
            title = f"{EVERY_METRIC[metric].title}: {plural(count, 'term')}, which add up exactly"
            yield title, table(("Stage", "Amount", "Change"), "lrl", rows)
    agreeing = [
        s
        for s in found.others
        if found.others[s].rows and _totals(found.others[s]) == _totals(found.by_source[found.source])
    ]
    if agreeing:
        yield "Other sources", [f"{some(agreeing, 9)}: the totals of FLOPs, parameters and calls change by the same."]
    yield "The two sides", [*_side("Base", found.base), *_side("Head", found.head)]
    for source, part in found.by_source.items():
        yield from _rows(source, part, named=len(found.by_source) > 1)


def _of_metric(found: Diff, metric: str) -> list[tuple[str, Quantity]]:
    total = [("total", found.totals[metric])] if len(found.stages) != 1 else []
    return [*total, *((s.id, s.totals[metric]) for s in found.stages)]


def _terms(found: Diff, metric: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for stage, q in _of_metric(found, metric):
        for term in q.terms[:_TERMS]:
            rows.append((markdown(stage), f"{term.amount:+,}", " with ".join(code(cut(k, _NAME)) for k in term.keys)))
        if len(q.terms) > _TERMS:
            rest = sum(t.amount for t in q.terms[_TERMS:])
            more = plural(len(q.terms) - _TERMS, "more term")
            rows.append((markdown(stage), f"{rest:+,}", f"{more}, in the JSON"))
    return rows


def _sums(part: SourceDiff) -> list[tuple[str, ...]]:
    stages = [(s.id, s.totals) for s in part.stages]
    stages += [("total", part.totals)] if len(stages) != 1 else []
    return [
        (markdown(stage), metric, *_numbers(q))
        for stage, totals in stages
        for metric, q in totals.items()
        if q.delta != 0
    ]


def _totals(part: SourceDiff) -> dict[str, int | None]:
    return {m: q.delta for m, q in part.totals.items() if EVERY_METRIC[m].proven}


def _numbers(q: Quantity | RowDiff) -> tuple[str, str, str]:
    return "?" if q.delta is None else f"{q.delta:+,}", exact(q.base), exact(q.head)


def _side(name: str, side: Side) -> list[str]:
    model = f"{code(cut(side.target, _NAME))} ({markdown(side.implementation)}, configuration {side.config_hash})"
    what = f": {markdown(cut(side.what, _NAME))}" if side.what else ""
    sources, versions = some([*map(markdown, side.sources)], 6), markdown(versions_line(side.environment))
    workload = f"workload {code(cut(side.workload, _NAME))}{what}"
    return [f"- {name}: {model}, {workload}, counted by {sources}. Made with {versions}."]


def _rows(source: str, part: SourceDiff, *, named: bool) -> Iterator[tuple[str, list[str]]]:
    stages = dict.fromkeys(r.stage for r in part.rows)
    for stage in stages:
        found = [r for r in part.rows if r.stage == stage]
        rows = [
            (
                code(r.part + (f":{r.kind}" if r.kind else "")) + _fate(r),
                r.metric,
                *_numbers(r),
            )
            for r in found
        ]
        title = f"{markdown(cut(stage, _NAME))}: {plural(len(found), 'row')} changed" + (
            f" ({markdown(source)})" if named else ""
        )
        yield title, table(("Part", "Metric", "Δ", "Base", "Head"), "llrrr", rows)


def _fate(row: RowDiff) -> str:
    """What became of a part that only one side has there."""
    if row.moved:
        return f" ({row.change}: {code(row.moved)})"
    return "" if row.change == "changed" else f" ({row.change})"
