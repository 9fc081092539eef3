"""The page of a diff: both sides beside each other by stage, what did it, every row that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costproof.compare.diff.types import Diff, Quantity, RowDiff
from costproof.ledger.metrics import EVERY_METRIC, Metric
from costproof.ledger.plural import plural, verb
from costproof.reports.diff_words import amount, change, gaps, headline, percent, sentence, signed, told
from costproof.reports.html.document import Html, h, joined, page, table
from costproof.reports.html.parts import (
    MOST,
    MOST_IN_A_CELL,
    Item,
    chips,
    folded,
    head,
    reasons,
    shares,
    sifted,
    swatch,
)
from costproof.views.describe import counted_lines, versions_line
from costproof.views.numbers import exact


def diff_page(found: Diff) -> str:
    """The file."""
    names = dict.fromkeys((found.base.name, found.head.name))
    metrics = _metrics(found)
    about = [f"{n}: {s.target} ({s.implementation}, configuration {s.config_hash}), workload {s.workload}"
             + (f": {s.what}" if s.what else "") for n, s in (("Base", found.base), ("Head", found.head))]  # fmt: skip
    about += counted_lines(found.base, found.head)
    made = (("Base", found.base), ("Head", found.head))
    return page(
        f"{found.base.name} → {found.head.name}",
        head(" → ".join(names), found.verdict, sentence(found), about),
        (
            reasons("Not compared", gaps(found)),
            _told(found),
            _changes(found),
            h(
                "section",
                h("h2", "Base and head"),
                chips([(m, EVERY_METRIC[m].title, signed(found.totals[m].delta, m)) for m in metrics], headline(found)),
                (_metric(found, m) for m in metrics),
                id="cost",
            ),
            h("section", h("h2", "Rows that changed"), _rows(found), id="rows"),
        ),
        h("footer", *(h("p", f"{n} made with {versions_line(s.environment)}.") for n, s in made)),
        {"first": headline(found)},
    )


def diff_cell(found: Diff) -> Iterator[Html | None]:
    """What a notebook shows of it: every metric but the headline folded."""
    yield reasons("Not compared", gaps(found))
    yield _told(found)
    yield _changes(found)
    first = headline(found)
    if first in found.totals:
        yield _metric(found, first)
    yield from (folded(EVERY_METRIC[m].title, _metric(found, m)) for m in _metrics(found) if m != first)
    yield from _rows(found, MOST_IN_A_CELL)


def _metrics(found: Diff) -> list[Metric]:
    return [m for m in EVERY_METRIC if m in found.totals and m != "calls"]


def _told(found: Diff) -> Html | None:
    said = [h("li", h("b", what), f" {does}.") for what, does in told(found)]
    if not said:
        return None
    first = f"In {EVERY_METRIC[headline(found)].title}; what changes do together is split evenly."
    return h("section", h("h2", "What did it"), h("p", first, class_="note"), h("ul", said))


def _changes(found: Diff) -> Html | None:
    rows = [(h("code", c.key), change(c)) for c in found.changes[:MOST]]
    return (
        folded(f"{plural(len(found.changes), 'change')}", table(("Changed", "Base → head"), rows, align="ll"))
        if rows
        else None
    )


def _metric(found: Diff, metric: Metric) -> Html:
    """Both bars have one scale, so that the longer one costs more."""
    info = EVERY_METRIC[metric]
    stages = [(s.id, s.totals[metric]) for s in found.stages if metric in s.totals]
    sums = [sum(v or 0 for v in side) for side in ([q.base for _, q in stages], [q.head for _, q in stages])]
    bars = [
        h("div", h("p", f"{name} {amount(whole, metric)}", class_="note"),
          shares([(s, q.base if name == "Base" else q.head) for s, q in stages], max(sums)))
        for name, whole in (("Base", found.totals[metric].base), ("Head", found.totals[metric].head))
    ]  # fmt: skip
    rows = [(h("span", swatch(i), name), *_numbers(q, metric)) for i, (name, q) in enumerate(stages)]
    total = [("total", found.totals[metric])] if len(stages) != 1 else []
    rows += [(h("b", name), *_numbers(q, metric)) for name, q in total]
    note = found.not_comparable.get(metric)
    terms = [(stage, f"{t.amount:+,}", " with ".join(t.keys)) for stage, q in (*stages, *total) for t in q.terms]
    return h(
        "div",
        h("h3", info.title),
        h("p", f"{info.unit}: {info.meaning}.", class_="note"),
        h("p", f"Not comparable: {note}") if note else None,
        *bars,
        table(("Stage", "Base", "Head", "Δ", "Δ", "Δ %"), rows, class_="cost diff"),
        folded(f"{plural(len(terms), 'term')}, which add up exactly", _cut(("Stage", "Amount", "Change"), terms))
        if terms
        else None,
        class_="metric",
        data_metric=metric,
    )


def _numbers(q: Quantity | RowDiff, metric: Metric) -> tuple[str, ...]:
    delta = "?" if q.delta is None else f"{q.delta:+,}" if q.delta else "0"
    return exact(q.base), exact(q.head), delta, signed(q.delta, metric), percent(q.delta, q.base)


def _cut(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Html:
    more = len(rows) - MOST
    return joined(table(head, rows[:MOST]), h("p", f"{more:,} more {verb(more)} in the JSON.") if more > 0 else None)


def _rows(found: Diff, most: int = MOST) -> Iterator[Html]:
    head = ("Stage", "Part", "Fate", "Metric", "Base", "Head", "Δ", "Δ", "Δ %")
    for source, part in found.by_source.items():
        if not part.rows:
            yield h("p", f"{source}: all {plural(part.same_rows, 'row')} are the same.")
            continue
        items = [
            Item(
                (r.stage, h("code", r.part + (f":{r.kind}" if r.kind else "")),
                 r.change + (f" {r.moved}" if r.moved else ""), r.metric, *_numbers(r, r.metric)),
                r.change,
            )
            for r in part.rows
        ]  # fmt: skip
        title = f"{plural(len(items), 'row')} ({source}), {plural(part.same_rows, 'other')} are the same"
        yield folded(title, sifted(head, items, name="row", align="llllr", most=most))
