"""A diff in words and in the rows of its first table, for every output that people read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from costproof.compare.diff.types import CODE, FORMULAS, IMPLEMENTATION, LIBRARIES, UNNAMED, Change, Diff, Quantity
from costproof.ledger.baseline import PEAK_SOURCE
from costproof.ledger.metrics import EVERY_METRIC, PEAK_METRICS, STAGE_WIDE, Metric
from costproof.ledger.plural import plural, verb
from costproof.ledger.workload import ConfigValue
from costproof.views.numbers import cut, human, share, some

MAX_ROWS: Final = 15
"""Rows of the first table."""
MAX_CHANGES: Final = 15
MAX_TOLD: Final = 8
"""Changes whose effect is told in words."""
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


@dataclass(frozen=True, slots=True)
class Line:
    """A sum on both sides."""

    stage: str
    metric: Metric
    quantity: Quantity


def headline(found: Diff) -> Metric:
    """The metric that is told first: FLOPs, or the first in the order of reports that changed where they did not."""
    order = ("flops", *(m for m in EVERY_METRIC if m != "flops"))
    there = [m for m in order if m in found.totals]
    changed = (m for m in there if any(s.totals[m].delta for s in found.stages))
    return next(changed, there[0] if there else "flops")


def sentence(found: Diff) -> str:
    """The verdict in one sentence, or two."""
    rows = sum(len(part.rows) for part in found.by_source.values())
    every = rows + sum(part.same_rows for part in found.by_source.values())
    sources = some([cut(s, _LONGEST) for s in found.by_source], 4)
    if found.verdict == "same":
        name, inert = cut(found.head.name, 2 * _LONGEST), [cut(c.key, _LONGEST) for c in found.changes]
        also = f" Changed without effect: {some(inert, 4)}." if inert else ""
        return f"No cost changed: all {plural(every, 'row')} of {name} are the same ({sources}).{also}"
    metric = headline(found)
    size = f"{_size(found.totals[metric], metric)} " if metric in found.totals else ""
    why = {"incomplete": "Incomplete", "silent": "A source fell silent"}.get(found.verdict)
    reason = f"{why}: {cut(gaps(found)[0], 200)}. " if why else ""
    return f"{reason}{size}{rows:,} of {plural(every, 'row')} changed ({sources})."


def gaps(found: Diff) -> tuple[str, ...]:
    """Return what keeps the comparison from being whole, and what a source gives on one side only."""
    return (*found.incomplete, *found.silent)


def _size(q: Quantity, metric: Metric) -> str:
    title = EVERY_METRIC[metric].title
    title = title[:1].upper() + title[1:]
    if q.delta is None:
        return f"{title}: {amount(q.base, metric)} → {amount(q.head, metric)}."
    if q.delta == 0:
        return f"{title} in all stay at {amount(q.head, metric)}."
    return f"{title} {_change(q.delta, q.base, metric)}: {amount(q.base, metric)} → {amount(q.head, metric)}."


def _change(delta: int, base: int | None, metric: Metric) -> str:
    """``+440 FLOP (+16.6 %)``."""
    part = percent(delta, base)
    return signed(delta, metric) + (f" ({part})" if part else "")


def amount(value: int | None, metric: Metric) -> str:
    """A number with its unit: ``1.47 TFLOP``; ``unknown``."""
    return "unknown" if value is None else human(value, _UNITS.get(EVERY_METRIC[metric].unit, ""))


def signed(value: int | None, metric: Metric) -> str:
    """:func:`amount` of a difference: ``+1.47 TFLOP``."""
    return f"+{amount(value, metric)}" if value and value > 0 else amount(value, metric)


def percent(part: int | None, whole: int | None) -> str:
    """A difference in percent of what it changed, with its sign: ``+73.1 %``; empty where that was 0 or is unknown."""
    if part is None or not whole:
        return ""
    size = share(abs(part), abs(whole))
    return size if size.startswith("below") or not part else f"{'+' if part > 0 else '-'}{size}"


def value(plain: ConfigValue) -> str:
    """A value of a key as text: lists with commas, ``—`` for nothing."""
    if plain is None:
        return "—"
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    return cut(", ".join(map(str, plain)) if isinstance(plain, tuple) else str(plain), _LONGEST)


def change(one: Change) -> str:
    """``6 → 8``."""
    return f"{value(one.base)} → {value(one.head)}"


def lines(found: Diff) -> Iterator[Line]:
    """What stands in the first table: sums that changed; the headline by stage, then the others in all, then those.

    Peaks, which nothing adds up to, stand after what does.
    """
    first = headline(found)
    stages = [(s.id, s.totals) for s in found.stages]
    whole = [("total", found.totals)] if len(stages) != 1 else []
    others = [m for m in found.totals if m != first]
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
            yield Line(name, metric, q)


def apart(found: Diff) -> list[str]:
    """What is not compared and leaves no gap in the cost."""
    left = [(EVERY_METRIC[m].title, why) for m, why in found.not_comparable.items() if m in PEAK_METRICS]
    return [f"not compared: {title} ({why})" for title, why in left]


def _named(name: str) -> str:
    """What is not a key, in words."""
    return " with ".join(_APART.get(part, part) for part in name.split(" + "))


def told(found: Diff) -> Iterator[tuple[str, str]]:
    """What did it, largest first: a change, and its part of the headline in words."""
    metric = headline(found)
    q = found.totals.get(metric)
    if q is None:
        return
    values = {c.key: change(c) for c in found.changes}
    players = {p.name: p.keys for p in found.players}
    alone = {t.keys[0]: t.amount for t in q.terms if len(t.keys) == 1}
    for name, amount_of in sorted(q.shares.items(), key=lambda item: (-abs(item[1]), item[0]))[:MAX_TOLD]:
        keys = players.get(name, ())
        what = ", ".join(f"{k} {values[k]}" for k in keys if k in values) or _named(name)
        does = verb(max(len(keys), 1), *(("adds", "add") if amount_of > 0 else ("takes", "take")))
        part = percent(amount_of, q.base)
        told_of = "; ".join(filter(None, (part, _mostly(found, metric, name, amount_of))))
        said = f"{does} {amount(abs(amount_of), metric)}" + (f" ({told_of})" if told_of else "")
        joint = amount_of - alone.get(name, 0)
        meets = [t for t in q.terms if name in t.keys and len(t.keys) > 1]
        if joint and meets:
            partners: dict[str, int] = {}
            for term in meets:
                for other in term.keys:
                    partners[other] = partners.get(other, 0) + abs(term.amount)
            partners.pop(name, None)
            names = [cut(n, _LONGEST) for n in sorted(partners, key=lambda n: (-partners[n], n))]
            own, shared = signed(alone.get(name, 0), metric), signed(joint, metric)
            said += f", of which {own} alone and {shared} together with {some(names, _PARTNERS)}"
        yield cut(what, _TOLD), "; ".join(filter(None, (said, beside(found, metric, name))))
    for one in found.modules.changed:
        if one.key not in q.shares:
            nothing = f"changes no {EVERY_METRIC[metric].title} by itself"
            does = "; ".join(filter(None, (nothing, beside(found, metric, one.key))))
            yield cut(f"{one.key} {change(one)}", _TOLD), does


def beside(found: Diff, metric: Metric, name: str) -> str:
    """What a change of a part does to parameters and bytes beside the headline; empty for all other changes."""
    if name not in {c.key for c in found.modules.changed}:
        return ""
    shares = {m: found.totals[m].shares.get(name) for m in _BESIDE if m in found.totals and m != metric}
    return ", ".join(f"{EVERY_METRIC[m].title} {signed(share, m)}" for m, share in shares.items() if share)


def _mostly(found: Diff, metric: Metric, name: str, share: int) -> str:
    """The stage that has at least half of a share: ``all in prefill``, ``+4.10 GFLOP in decode``."""
    shares = {s.id: s.totals[metric].shares.get(name, 0) for s in found.stages if metric in s.totals}
    stage = max(shares, key=lambda s: abs(shares[s]), default="")
    if len(shares) < 2 or metric in STAGE_WIDE or 2 * abs(shares[stage]) < abs(share):
        return ""
    much = "all" if shares[stage] == share else signed(shares[stage], metric)
    return f"{much} in {cut(stage, _LONGEST)}"
