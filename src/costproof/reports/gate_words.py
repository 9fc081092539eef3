"""A gate in words and in the rows of its table, for every output that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costproof.compare.gate.types import AllowanceUse, Check, Gate, Status
from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.plural import plural, verb
from costproof.reports.diff_words import amount, percent, signed
from costproof.views.numbers import cut, some

HEAD: Final = ("Result", "Place", "Metric", "Δ %", "Δ", "Limit", "Base", "Head")
"""What is said first is what a telephone shows."""
LEFT: Final = 3
"""Columns of words."""
_REASON: Final = 300
_PLACE: Final = 120


@dataclass(frozen=True, slots=True)
class Line:
    """Checks of several sources that say the same."""

    check: Check
    sources: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Under :data:`HEAD`."""
        c = self.check
        delta = (percent(c.delta, c.base), signed(c.delta, c.metric))
        sides = (amount(c.base, c.metric), amount(c.head, c.metric))
        return (c.status, c.place, EVERY_METRIC[c.metric].title, *delta, c.limit, *sides)

    @property
    def sentence(self) -> str:
        """``prefill: FLOPs +310.20 GFLOP (+23.2 %), 1.34 → 1.65 TFLOP; limit increase 1 %, 296.80 GFLOP over``."""
        c = self.check
        name = f"{c.place}: {EVERY_METRIC[c.metric].title}"
        who = ", ".join(self.sources)
        if c.status == "unknown":
            return f"{name} unknown ({who}): {c.why}"
        share = percent(c.delta, c.base)
        size = f"{signed(c.delta, c.metric)}{f' ({share})' if share else ''}, " if c.delta is not None else ""
        over = f", {amount(c.over, c.metric)} over" if c.over else ""
        why = f"; {cut(c.why, _REASON)}" if c.why else ""
        return f"{name} {size}{amount(c.base, c.metric)} → {amount(c.head, c.metric)}; {c.limit}{over} ({who}){why}"


def lines(found: Gate, *statuses: Status) -> list[Line]:
    """The checks that ended so, furthest above their limit first, sources that say the same together."""
    merged: dict[tuple[object, ...], list[Check]] = {}
    for c in found.of(*statuses):
        key = (c.metric, c.place, c.limit, c.base, c.head, c.status, c.why, c.line)
        merged.setdefault(key, []).append(c)
    return [Line(same[0], tuple(c.source for c in same)) for same in merged.values()]


def whys(found: Sequence[Line]) -> list[tuple[str, str]]:
    """What there is to say of the rows of a table: places, and what is the same of all of them."""
    said: dict[str, dict[str, None]] = {}
    for x in found:
        if x.check.why:
            said.setdefault(cut(x.check.why, _REASON), {})[cut(x.check.place, _PLACE)] = None
    return [(some([*places], 3), why) for why, places in said.items()]


def sentence(found: Gate) -> str:
    """The verdict in one sentence."""
    over, allowed = lines(found, "over"), lines(found, "allowed")
    every = lines(found, "passed", "allowed", "over", "unknown")
    by = f", {len(allowed):,} of them by an allowance" if allowed else ""
    if found.verdict == "passed":
        return f"Passed: {plural(len(every), 'check')}{by} ({found.head.name})."
    if found.verdict == "over":
        if not over:
            return f"A source fell silent: {found.silent[0]}."
        worst = over[0].sentence
        return f"Over the limit in {len(over):,} of {plural(len(every), 'check')}; {worst}."
    why = reasons(found)
    more = f" and {plural(len(why) - 1, 'more reason')}" if len(why) > 1 else ""
    also = f" {len(over):,} of {plural(len(every), 'check')} {verb(len(over))} over the limit." if over else ""
    return f"Incomplete, so it does not pass: {cut(why[0], _REASON)}{more}.{also}"


def reasons(found: Gate) -> list[str]:
    """Why nothing may be claimed."""
    return [*found.incomplete, *found.silent, *(x.sentence for x in lines(found, "unknown"))]


def idle(found: Gate) -> list[str]:
    """Allowances to take out of the policy."""
    return [idle_text(a) for a in found.allowances if a.state != "used"]


def idle_text(a: AllowanceUse) -> str:
    """One of them."""
    state = "has run out" if a.state == "expired" else "is not needed"
    return f"the allowance for {a.place} ({cut(a.reason, 80)}, until {a.until}) {state}"


def changes(found: Gate) -> str:
    """The inputs that changed, in one line; empty if none did."""
    keys = [c.key for c in (*found.config.changed, *found.workload.changed)]
    return f"Changed: {some(keys, 8)}." if keys else ""
