"""Derive the status of a stage from its findings."""

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
"""Statuses without an open difference."""


def worst(findings: list[Finding]) -> str:
    """Return the worst status of some findings; ``—`` without any.

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
    """Return the worst status of a stage, with its metrics if FLOPs are not among them: ``explained (params)``."""
    here = [f for f in discrepancy.findings if f.stage == stage]
    status = worst(here)
    named = list(dict.fromkeys(f.metric for f in here if f.status == status))
    if status in ("exact", "not-executed") or not named or "flops" in named:
        return status
    return f"{status} ({first_names(named, _MOST_METRICS)})"


def open_findings(discrepancy: Discrepancy) -> list[Finding]:
    """Return findings of modules and traces with a residual, largest first."""
    bad = [f for f in discrepancy.findings if f.status in ("unexplained", "unsupported")]
    located = [f for f in bad if f.level in ("module", "trace", "judge", "source")] or bad
    return sorted(located, key=lambda f: (-abs(f.residual or 0), f.id))


def tally(discrepancy: Discrepancy) -> str:
    """Return the number of findings by status: ``29 comparisons: 25 exact, 4 unexplained``."""
    counts = Counter(str(f.status) for f in discrepancy.findings)
    words = ", ".join(f"{n:,} {s}" for s, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return f"{plural(len(discrepancy.findings), 'comparison')}: {words or 'none'}"
