"""Report what changed between base and head of a diff, and the effect of each change on the costs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Final

from costproof.compare.diff.types import (
    CODE,
    FORMULAS,
    IMPLEMENTATION,
    LIBRARIES,
    UNNAMED,
    Change,
    Diff,
    Quantity,
    RowDiff,
    Side,
    SourceDiff,
)
from costproof.ledger.baseline import PEAK_SOURCE
from costproof.ledger.metrics import COMM, EVERY_METRIC, PEAK_METRICS, STAGE_WIDE, Metric
from costproof.ledger.plural import plural, verb
from costproof.ledger.workload import ConfigValue
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Details,
    Document,
    DocumentSection,
    Form,
    Items,
    Markup,
    Note,
    Prose,
    Strong,
    Table,
    TableRow,
    Verdict,
    code_list,
)
from costproof.reports.html.document import h, join_markup
from costproof.reports.html.printer import HtmlPrinter, chips, shares, swatch
from costproof.views.describe import counted_lines, versions_line
from costproof.views.numbers import exact, first_names, human, share, truncate

MAX_ROWS: Final = 15
"""Maximum number of rows of the first table."""
MAX_CHANGES: Final = 15
MAX_TOLD: Final = 8
"""Maximum number of changes whose effect is described."""
_PARTNERS: Final = 3
_LONGEST: Final = 60
_TOLD: Final = 400
_APART: Final = {
    LIBRARIES: "another set of libraries",
    IMPLEMENTATION: "another implementation",
    FORMULAS: "another version of the formulas",
    CODE: "other code of the model",
    UNNAMED: "something that no change names",
    "family": "another family",
}
_BESIDE: Final = ("params", "weight_bytes", "output_bytes")
_UNITS: Final = {"FLOP": "FLOP", "bytes": "B", "MAC": "MAC"}
_REASONS: Final = 5
_NAME: Final = 120
_TERMS: Final = 40
"""Maximum number of formula terms per quantity in a comment; the JSON has all terms."""
MetricSums = dict[Metric, Quantity]


def document(found: Diff, form: Form) -> Document:
    """Return the report of a diff: the verdict, changed sums, changed settings, and the effect of each change."""
    if form in ("html", "cell"):
        return _page(found, cell=form == "cell")
    about = counted_lines(found.base, found.head)
    if form == "md" and found.verdict == "same":
        return Document("", (), found.verdict, diff_sentence(found), about, sign="✅")
    names = tuple(dict.fromkeys((found.base.name, found.head.name)))
    why, every, effects = comparison_gaps(found), list(changed_sums(found)), list(attribute_changes(found))
    body: list[Block] = []
    if form == "text":
        head = ("Stage", "Metric", "Base", "Head", "Δ", "Δ %")
        rows = [
            (x.stage, EVERY_METRIC[x.metric].title, format_amount(q.base, x.metric), format_amount(q.head, x.metric),
             format_delta(q.delta, x.metric), percent(q.delta, q.base))
            for x in every for q in [x.quantity]
        ]  # fmt: skip
        body += [Table(head, "llrrrr", rows, most=MAX_ROWS, noun="sum")] if rows else []
        named = {c.key for p in found.players for c in found.changes if c.key in p.keys}
        others = [f"{c.key} {format_change(c)}" for c in found.changes if c.key not in named]
        body += [Verdict(found.verdict, diff_sentence(found)), *(Note(f"  {reason}") for reason in why[1:])]
        body += [Items((*(f"{what} {does}" for what, does in effects), *uncompared_peaks(found), *others))]
        return Document(" → ".join(names), body, about=about)
    body += [Items(tuple(truncate(w, 300) for w in why[:_REASONS]))] if why else []
    cells = [
        (truncate(x.stage, _NAME), EVERY_METRIC[x.metric].title, percent(q.delta, q.base),
         Strong(format_delta(q.delta, x.metric)), format_amount(q.base, x.metric), format_amount(q.head, x.metric))
        for x in every for q in [x.quantity]
    ]  # fmt: skip
    head = ("Stage", "Metric", "Δ %", "Δ", "Base", "Head")  # a phone shows the first columns
    body += [Table(head, "llrrrr", cells, most=MAX_ROWS, noun="sum", rest="the tables below")] if cells else []
    if effects:
        body += [f"What did it, in {EVERY_METRIC[headline(found)].title}; what changes do together is split evenly:"]
        body += [Items(tuple(f"{what} {does}." for what, does in effects))]
    kinds = {
        "configuration": found.config, "workload": found.workload, "modules": found.modules,
        "conventions": found.conventions, "libraries": found.libraries, "implementation": found.implementation,
        "formulas": found.formulas,
    }  # fmt: skip
    changed = [
        (Code(truncate(c.key, _NAME)), *(Code("" if v is None else format_value(v)) for v in (c.base, c.head)), kind)
        for kind, changes in kinds.items() for c in changes.changed
    ]  # fmt: skip
    if changed:
        body.append(Table(("Changed", "Base", "Head", "Of the"), "llll", changed, most=MAX_CHANGES, noun="change"))
    body += [f"{x[:1].upper()}{x[1:]}." for x in uncompared_peaks(found)]
    coded = [piece for name in names for piece in (" → ", Code(truncate(name, _NAME)))]
    title = ("What a change costs: ", *coded[1:])
    return Document(title, [*body, *_details(found)], found.verdict, diff_sentence(found), about)


def _page(found: Diff, *, cell: bool) -> Document:
    """Return the HTML page of a diff, or a notebook cell, which has no script and folds all metrics but the first."""
    metrics = [m for m in EVERY_METRIC if m in found.totals and m != "calls"]
    sides, first = (("Base", found.base), ("Head", found.head)), headline(found)
    about = [f"{n}: {s.target} ({s.implementation}, configuration {s.config_hash}), workload {s.workload}"
             + (f": {s.what}" if s.what else "") for n, s in sides]  # fmt: skip
    body: list[Block] = []
    if why := comparison_gaps(found):
        body.append(DocumentSection("Not compared", [Items(why)], flagged=True))
    if effects := [(Strong(what), f" {does}.") for what, does in attribute_changes(found)]:
        note = Note(f"In {EVERY_METRIC[first].title}; what changes do together is split evenly.")
        body.append(DocumentSection("What did it", [note, Items(tuple(effects))]))
    if found.changes:
        table = Table(
            ("Changed", "Base → head"), "ll", [(Code(c.key), format_change(c)) for c in found.changes], most=1_000
        )
        body.append(Details(plural(len(found.changes), "change"), [table]))
    if cell:
        body += [_metric(found, first)] if first in found.totals else []
        body += [Details(EVERY_METRIC[m].title, [_metric(found, m)]) for m in metrics if m != first]
        body += _rows(found)
    else:
        choice = chips([(m, EVERY_METRIC[m].title, format_delta(found.totals[m].delta, m)) for m in metrics], first)
        body.append(
            DocumentSection("Base and head", [Markup(choice), *(_metric(found, m) for m in metrics)], id="cost")
        )
        body.append(DocumentSection("Rows that changed", list(_rows(found)), id="rows"))
    names = " → ".join(dict.fromkeys((found.base.name, found.head.name)))
    foot = [f"{n} made with {versions_line(s.environment)}." for n, s in sides]
    counted = counted_lines(found.base, found.head)
    about = counted if cell else [*about, *counted]
    return Document(names, body, found.verdict, diff_sentence(found), about, foot, data={"first": first})


def _metric(found: Diff, metric: Metric) -> Markup:
    """Return a metric of base and head as two bars on one scale, and as a table."""
    info, whole = EVERY_METRIC[metric], found.totals[metric]
    stages = [(s.id, s.totals[metric]) for s in found.stages if metric in s.totals]
    bars = {
        "Base": (whole.base, [(s, q.base) for s, q in stages]), "Head": (whole.head, [(s, q.head) for s, q in stages])
    }  # fmt: skip
    longest = max(sum(v or 0 for _, v in side) for _, side in bars.values())
    drawn = [
        h("div", h("p", f"{name} {format_amount(all_, metric)}", class_="note"), shares(side, longest))
        for name, (all_, side) in bars.items()
    ]
    total = [("total", whole)] if len(stages) != 1 else []
    rows = [(h("span", swatch(i), name), *_numbers(q, metric)) for i, (name, q) in enumerate(stages)]
    rows += [(h("b", name), *_numbers(q, metric)) for name, q in total]
    terms = [(stage, f"{t.amount:+,}", " with ".join(t.keys)) for stage, q in (*stages, *total) for t in q.terms]
    blocks: list[Block] = [Note(f"{info.unit}: {info.meaning}.")]
    blocks += [f"Not comparable: {found.not_comparable[metric]}"] if metric in found.not_comparable else []
    blocks += [
        Markup(join_markup(drawn)),
        Table(("Stage", "Base", "Head", "Δ", "Δ", "Δ %"), "lr", rows, style="cost diff"),
    ]
    if terms:
        table = Table(("Stage", "Amount", "Change"), "lr", terms, most=1_000)
        blocks.append(Details(f"{plural(len(terms), 'term')}, which add up exactly", [table]))
    return Markup(h("div", h("h3", info.title), HtmlPrinter().blocks(blocks), class_="metric", data_metric=metric))


def _rows(found: Diff) -> Iterator[Block]:
    """Yield, for each source, a searchable table of the changed rows."""
    head = ("Stage", "Part", "Fate", "Metric", "Base", "Head", "Δ", "Δ", "Δ %")
    for source, part in found.by_source.items():
        if not part.rows:
            yield f"{source}: all {plural(part.same_rows, 'row')} are the same."
            continue
        rows = [
            TableRow(
                (r.stage, Code(_part(r)), f"{r.change} {r.moved}".rstrip(), r.metric, *_numbers(r, r.metric)), r.change
            )
            for r in part.rows
        ]
        title = f"{plural(len(rows), 'row')} ({source}), {plural(part.same_rows, 'other')} are the same"
        yield Details(title, [Table(head, "llllr", rows, searchable=True)])


def _numbers(q: Quantity | RowDiff, metric: Metric) -> tuple[str, ...]:
    delta = "?" if q.delta is None else f"{q.delta:+,}" if q.delta else "0"
    return exact(q.base), exact(q.head), delta, format_delta(q.delta, metric), percent(q.delta, q.base)


def _details(found: Diff) -> Iterator[Details]:
    """Yield the collapsible sections of a comment on a diff, most valuable first."""
    apart_ = [(Code(truncate(p.name, 4 * _NAME)), f": {p.why}") for p in found.players if p.why]
    if apart_:
        title = "Keys that are not told apart, because a model with only some of them is refused"
        yield Details(title, [Items(tuple(apart_[:MAX_CHANGES]))])
    head = ("Stage", "Metric", "Δ", "Base", "Head")
    for source, part in found.by_source.items():
        name = "" if source == found.source else f" ({source})"
        rows = [
            (stage, metric, *_exact(q))
            for stage, totals in _with_total(part, [(s.id, s.totals) for s in part.stages])
            for metric, q in totals.items()
            if q.delta != 0
        ]
        if rows and (not name or _proven(part) != _proven(found.by_source[found.source])):
            yield Details(f"All sums that changed{name}", [Table(head, "llrrr", rows)])
    for metric in sorted(found.totals, key=lambda m: (m != headline(found), list(EVERY_METRIC).index(m))):
        sums = _with_total(found, [(s.id, s.totals) for s in found.stages])
        ordered = [*sums[len(found.stages) :], *sums[: len(found.stages)]]
        terms = [row for stage, totals in ordered for row in _terms(stage, totals[metric])]
        if terms:
            count = sum(len(totals[metric].terms) for _, totals in sums)
            title = f"{EVERY_METRIC[metric].title}: {plural(count, 'term')}, which add up exactly"
            yield Details(title, [Table(("Stage", "Amount", "Change"), "lrl", terms)])
    ours = _proven(found.by_source[found.source])
    if agreeing := [s for s, part in found.others.items() if part.rows and _proven(part) == ours]:
        said = f"{first_names(agreeing, 9)}: the totals of FLOPs, parameters and calls change by the same."
        yield Details("Other sources", [said])
    yield Details("The two sides", [Items((_side("Base", found.base), _side("Head", found.head)))])
    for source, part in found.by_source.items():
        named = f" ({source})" if len(found.by_source) > 1 else ""
        for stage in dict.fromkeys(r.stage for r in part.rows):
            mine = [r for r in part.rows if r.stage == stage]
            cells = [((Code(_part(r)), *_fate(r)), r.metric, *_exact(r)) for r in mine]
            title = f"{truncate(stage, _NAME)}: {plural(len(mine), 'row')} changed{named}"
            yield Details(title, [Table(("Part", *head[1:]), "llrrr", cells)])


def _with_total(found: Diff | SourceDiff, stages: list[tuple[str, MetricSums]]) -> list[tuple[str, MetricSums]]:
    """Return the sums by stage with the total last, unless the only stage is the total."""
    return [*stages, *([("total", found.totals)] if len(stages) != 1 else [])]


def _terms(stage: str, q: Quantity) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = [
        (stage, f"{t.amount:+,}", code_list([truncate(k, _NAME) for k in t.keys], " with ")) for t in q.terms[:_TERMS]
    ]
    if len(q.terms) > _TERMS:
        rest = sum(t.amount for t in q.terms[_TERMS:])
        rows.append((stage, f"{rest:+,}", f"{plural(len(q.terms) - _TERMS, 'more term')}, in the JSON"))
    return rows


def _proven(part: SourceDiff) -> dict[str, int | None]:
    return {m: q.delta for m, q in part.totals.items() if EVERY_METRIC[m].proven}


def _exact(q: Quantity | RowDiff) -> tuple[str, str, str]:
    return "?" if q.delta is None else f"{q.delta:+,}", exact(q.base), exact(q.head)


def _part(row: RowDiff) -> str:
    return row.part + (f":{row.kind}" if row.kind else "")


def _fate(row: RowDiff) -> tuple[str, ...]:
    """Return ``added``, ``removed`` or ``moved`` for a part that only base or only head has; else an empty text."""
    if row.moved:
        return f" ({row.change}: ", Code(row.moved), ")"
    return () if row.change == "changed" else (f" ({row.change})",)


def _side(name: str, side: Side) -> Prose:
    what = f": {truncate(side.what, _NAME)}" if side.what else ""
    model, workload = Code(truncate(side.target, _NAME)), Code(truncate(side.workload, _NAME))
    how = f" ({side.implementation}, configuration {side.config_hash}), workload "
    made = f"{what}, counted by {first_names(side.sources, 6)}. Made with {versions_line(side.environment)}."
    return f"{name}: ", model, how, workload, made


@dataclass(frozen=True, slots=True)
class SumChange:
    """Change of a metric, summed over a stage or the whole run, between base and head."""

    stage: str
    metric: Metric
    quantity: Quantity


def headline(found: Diff) -> Metric:
    """Return the metric reported first: FLOPs, or the first changed metric if FLOPs did not change."""
    order = ("flops", *(m for m in EVERY_METRIC if m != "flops"))
    there = [m for m in order if m in found.totals]
    changed = (m for m in there if any(s.totals[m].delta for s in found.stages))
    return next(changed, there[0] if there else "flops")


def diff_sentence(found: Diff) -> str:
    """Return the verdict of a diff in one or two sentences."""
    rows = sum(len(part.rows) for part in found.by_source.values())
    every = rows + sum(part.same_rows for part in found.by_source.values())
    sources = first_names([truncate(s, _LONGEST) for s in found.by_source], 4)
    if found.verdict == "same":
        name, inert = truncate(found.head.name, 2 * _LONGEST), [truncate(c.key, _LONGEST) for c in found.changes]
        also = f" Changed without effect: {first_names(inert, 4)}." if inert else ""
        return f"No cost changed: all {plural(every, 'row')} of {name} are the same ({sources}).{also}"
    metric = headline(found)
    size = f"{_size(found.totals[metric], metric)} " if metric in found.totals else ""
    why = {"incomplete": "Incomplete", "silent": "A source fell silent"}.get(found.verdict)
    reason = f"{why}: {truncate(comparison_gaps(found)[0], 200)}. " if why else ""
    return f"{reason}{size}{rows:,} of {plural(every, 'row')} changed ({sources})."


def comparison_gaps(found: Diff) -> tuple[str, ...]:
    """Return the reasons why the comparison is incomplete, and the metrics that only base or only head has."""
    return (*found.incomplete, *found.silent)


def _size(q: Quantity, metric: Metric) -> str:
    title = EVERY_METRIC[metric].title
    title = title[:1].upper() + title[1:]
    if q.delta is None:
        return f"{title}: {format_amount(q.base, metric)} → {format_amount(q.head, metric)}."
    if q.delta == 0:
        return f"{title} in all stay at {format_amount(q.head, metric)}."
    sides = f"{format_amount(q.base, metric)} → {format_amount(q.head, metric)}"
    return f"{title} {_change(q.delta, q.base, metric)}: {sides}."


def _change(delta: int, base: int | None, metric: Metric) -> str:
    """Format a difference with its percentage: ``+440 FLOP (+16.6 %)``."""
    part = percent(delta, base)
    return format_delta(delta, metric) + (f" ({part})" if part else "")


def format_amount(value: int | None, metric: Metric) -> str:
    """Format a number with the unit of its metric: ``1.47 TFLOP``; ``unknown`` for None."""
    return "unknown" if value is None else human(value, _UNITS.get(EVERY_METRIC[metric].unit, ""))


def format_delta(value: int | None, metric: Metric) -> str:
    """Format a difference with sign and unit: ``+1.47 TFLOP``."""
    return f"+{format_amount(value, metric)}" if value and value > 0 else format_amount(value, metric)


def percent(part: int | None, whole: int | None) -> str:
    """Return a signed difference in percent of the base: ``+73.1 %``; empty if the base is 0 or unknown."""
    if part is None or not whole:
        return ""
    size = share(abs(part), abs(whole))
    return size if size.startswith("below") or not part else f"{'+' if part > 0 else '-'}{size}"


def format_value(plain: ConfigValue) -> str:
    """Format the value of a configuration key: lists with commas, ``—`` for None."""
    if plain is None:
        return "—"
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    return truncate(", ".join(map(str, plain)) if isinstance(plain, tuple) else str(plain), _LONGEST)


def format_change(one: Change) -> str:
    """Format both values of a changed key: ``6 → 8``."""
    return f"{format_value(one.base)} → {format_value(one.head)}"


def changed_sums(found: Diff) -> Iterator[SumChange]:
    """Yield changed sums in order: the headline metric by stage, other totals, peaks, other sums by stage.

    Of other totals communication comes first, since no other metric grows with the number of devices; peaks, which
    nothing adds up to, stand after what does.
    """
    first = headline(found)
    stages = [(s.id, s.totals) for s in found.stages]
    whole = [("total", found.totals)] if len(stages) != 1 else []
    others = sorted((m for m in found.totals if m != first), key=lambda m: m not in COMM)
    peaks = found.by_source[PEAK_SOURCE].totals if PEAK_SOURCE in found.others else {}
    every = (
        *((name, first, totals) for name, totals in (*stages, *whole)),
        *((name, m, totals) for m in others for name, totals in whole or stages),
        *(("total", m, peaks) for m in peaks),
        *((name, m, totals) for m in others if whole for name, totals in stages),
    )
    for name, metric, totals in every:
        q = totals[metric]
        if q.delta != 0:
            yield SumChange(name, metric, q)


def uncompared_peaks(found: Diff) -> list[str]:
    """Return a sentence with the reason for each peak that could not be compared."""
    left = [(EVERY_METRIC[m].title, why) for m, why in found.not_comparable.items() if m in PEAK_METRICS]
    return [f"not compared: {title} ({why})" for title, why in left]


def _named(name: str) -> str:
    """Return the description of a change that is not a configuration key, given its name."""
    return " with ".join(_APART.get(part, part) for part in name.split(" + "))


def attribute_changes(found: Diff) -> Iterator[tuple[str, str]]:
    """Yield (description, share of the headline metric) of each change as texts, largest share first."""
    metric = headline(found)
    q = found.totals.get(metric)
    if q is None:
        return
    values = {c.key: format_change(c) for c in found.changes}
    players = {p.name: p.keys for p in found.players}
    alone = {t.keys[0]: t.amount for t in q.terms if len(t.keys) == 1}
    for name, amount_of in sorted(q.shares.items(), key=lambda item: (-abs(item[1]), item[0]))[:MAX_TOLD]:
        keys = players.get(name, ())
        what = ", ".join(f"{k} {values[k]}" for k in keys if k in values) or _named(name)
        does = verb(max(len(keys), 1), *(("adds", "add") if amount_of > 0 else ("takes", "take")))
        part = percent(amount_of, q.base)
        told_of = "; ".join(filter(None, (part, _mostly(found, metric, name, amount_of))))
        said = f"{does} {format_amount(abs(amount_of), metric)}" + (f" ({told_of})" if told_of else "")
        joint = amount_of - alone.get(name, 0)
        meets = [t for t in q.terms if name in t.keys and len(t.keys) > 1]
        if joint and meets:
            partners: dict[str, int] = {}
            for term in meets:
                for other in term.keys:
                    partners[other] = partners.get(other, 0) + abs(term.amount)
            partners.pop(name, None)
            names = [truncate(n, _LONGEST) for n in sorted(partners, key=lambda n: (-partners[n], n))]
            own, shared = format_delta(alone.get(name, 0), metric), format_delta(joint, metric)
            said += f", of which {own} alone and {shared} together with {first_names(names, _PARTNERS)}"
        yield truncate(what, _TOLD), "; ".join(filter(None, (said, _other_effects(found, metric, name))))
    for one in found.modules.changed:
        if one.key not in q.shares:
            nothing = f"changes no {EVERY_METRIC[metric].title} by itself"
            does = "; ".join(filter(None, (nothing, _other_effects(found, metric, one.key))))
            yield truncate(f"{one.key} {format_change(one)}", _TOLD), does


def _other_effects(found: Diff, metric: Metric, name: str) -> str:
    """Return the effect of a changed module on parameters and bytes; empty for other kinds of changes."""
    if name not in {c.key for c in found.modules.changed}:
        return ""
    shares = {m: found.totals[m].shares.get(name) for m in _BESIDE if m in found.totals and m != metric}
    return ", ".join(f"{EVERY_METRIC[m].title} {format_delta(share, m)}" for m, share in shares.items() if share)


def _mostly(found: Diff, metric: Metric, name: str, share: int) -> str:
    """Return the stage with at least half of a change's effect: ``all in prefill``, ``+4.10 GFLOP in decode``."""
    shares = {s.id: s.totals[metric].shares.get(name, 0) for s in found.stages if metric in s.totals}
    stage = max(shares, key=lambda s: abs(shares[s]), default="")
    if len(shares) < 2 or metric in STAGE_WIDE or 2 * abs(shares[stage]) < abs(share):
        return ""
    much = "all" if shares[stage] == share else format_delta(shares[stage], metric)
    return f"{much} in {truncate(stage, _LONGEST)}"


def diff_csv(found: Diff) -> str:
    """Return sums and changed rows as CSV with exact integers; an unknown number is empty."""
    from costproof.views.frames import DIFF_COLUMNS, diff_rows  # loads sympy, which the other formats do not need

    out = StringIO()
    writer = csv.DictWriter(out, DIFF_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(diff_rows(found))
    return out.getvalue()
