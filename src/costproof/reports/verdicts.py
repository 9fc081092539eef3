"""Which status a stage has: the worst of its findings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from costproof.compare.findings import Discrepancy, Finding

# What one source alone gives (active parameters) says nothing against the rest; where it matters,
# the verdict is incomplete.
_WORST_FIRST: Final = (
    "unexplained",
    "unsupported",
    "explained",
    "exact",
    "analytic-only",
    "static-only",
    "dynamic-only",
    "not-executed",
)
GOOD: Final = frozenset({"exact", "explained", "not-executed"})
"""Statuses that leave nothing open."""


def worst(findings: list[Finding]) -> str:
    """The worst status of some findings; ``—`` without any."""
    found = {str(f.status) for f in findings}
    return next((s for s in _WORST_FIRST if s in found), "—")


def stage_status(discrepancy: Discrepancy, stage: str, metric: str | None = None) -> str:
    """The worst status of a stage, of one metric or of all."""
    return worst([f for f in discrepancy.findings if f.stage == stage and metric in (None, f.metric)])


def open_findings(discrepancy: Discrepancy) -> list[Finding]:
    """Findings of modules and traces with something left over, largest residual first."""
    bad = [f for f in discrepancy.findings if f.status in ("unexplained", "unsupported")]
    located = [f for f in bad if f.level in ("module", "trace")] or bad
    return sorted(located, key=lambda f: (-abs(f.residual or 0), f.id))


def tally(discrepancy: Discrepancy) -> Counter[str]:
    """How many findings there are of each status."""
    return Counter(str(f.status) for f in discrepancy.findings)
