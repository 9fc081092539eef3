"""Which status a stage has: the worst of its findings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from costproof.ledger.metrics import PROVEN
from costproof.ledger.plural import plural
from costproof.views.numbers import first_names

if TYPE_CHECKING:
    from costproof.compare.findings import Discrepancy, Finding

_OPEN: Final = ("unexplained", "unsupported")
_SETTLED: Final = ("explained", "exact")
_ONE_SOURCE: Final = ("analytic-only", "static-only", "dynamic-only", "isolated-only")
_MOST_METRICS: Final = 2
GOOD: Final = frozenset({"exact", "explained", "not-executed"})
"""Statuses that leave nothing open."""


def worst(findings: list[Finding]) -> str:
    """The worst status of some findings; ``—`` without any.

    A headline metric of a stage that one source alone gives is not proven, so it ranks with what is incomplete.
    Any other metric, and what only a run can tell of a module (the experts it reached), says nothing against the rest.
    """
    found = {str(f.status) for f in findings}
    unproven = {str(f.status) for f in findings if f.metric in PROVEN and f.level == "stage"}
    ranking = (
        *(s for s in _OPEN if s in found),
        *(s for s in _ONE_SOURCE if s in unproven),
        *(s for s in (*_SETTLED, *_ONE_SOURCE, "not-executed") if s in found),
    )
    return next(iter(ranking), "—")


def stage_words(discrepancy: Discrepancy, stage: str) -> str:
    """The worst status of a stage, with the metrics that have it where FLOPs do not: ``explained (params)``."""
    here = [f for f in discrepancy.findings if f.stage == stage]
    status = worst(here)
    named = list(dict.fromkeys(f.metric for f in here if f.status == status))
    if status in ("exact", "not-executed") or not named or "flops" in named:
        return status
    return f"{status} ({first_names(named, _MOST_METRICS)})"


def open_findings(discrepancy: Discrepancy) -> list[Finding]:
    """Findings of modules and traces with something left over, largest residual first."""
    bad = [f for f in discrepancy.findings if f.status in ("unexplained", "unsupported")]
    located = [f for f in bad if f.level in ("module", "trace", "judge", "source")] or bad
    return sorted(located, key=lambda f: (-abs(f.residual or 0), f.id))


def tally(discrepancy: Discrepancy) -> str:
    """How many findings there are of each status: ``29 comparisons: 25 exact, 4 unexplained``."""
    counts = Counter(str(f.status) for f in discrepancy.findings)
    words = ", ".join(f"{n:,} {s}" for s, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return f"{plural(len(discrepancy.findings), 'comparison')}: {words or 'none'}"
