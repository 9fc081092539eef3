"""Compute the results of a run from its capture, each on first use, and the status of each stage."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import PROVEN
from costproof.ledger.notebook import ReportRepr
from costproof.ledger.plural import plural
from costproof.views.numbers import first_names

if TYPE_CHECKING:
    import pandas as pd

    from costproof.compare.findings import Discrepancy, Finding
    from costproof.estimate.roofline import Roofline
    from costproof.ledger.counter import CounterUsage
    from costproof.ledger.profile import Profile
    from costproof.views.static_compute import StaticCompute


@dataclass(frozen=True, eq=False, repr=False)
class Results(ReportRepr):
    """A capture and all results computed from it, each on first use."""

    capture: Capture
    """All ledgers of the run."""
    profile: Profile | None = None
    """Measured times, if the run was measured."""
    chrome_trace: str = ""
    spent: dict[str, CounterUsage] = field(default_factory=dict)
    """Time and memory that each third-party counter needed, if they ran."""
    roofline: Roofline | None = None
    """The roofline on a device, if one was named."""

    @cached_property
    def discrepancy(self) -> Discrepancy:
        """Return every finding of the comparison of the capture's sources."""
        from costproof.compare.compare import compare

        return compare(self.capture)

    @cached_property
    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        from costproof.compare.verdict import verdict_sentence

        return verdict_sentence(self.discrepancy)

    @cached_property
    def static(self) -> StaticCompute:
        """Return the cost of each stage with its formulas."""
        return self._static(formulas=True)

    @cached_property
    def figures(self) -> StaticCompute:
        """Return :attr:`static` without formulas, which take most of the time to compute."""
        return self._static(formulas=False)

    def _static(self, *, formulas: bool) -> StaticCompute:
        from costproof.views.static_compute import static_compute

        return static_compute(self.capture, self.discrepancy.verdict, formulas=formulas)

    @property
    def verdict(self) -> str:
        """Return ``exact``, ``explained``, ``unexplained`` or ``incomplete``."""
        return self.discrepancy.verdict

    @property
    def exit_code(self) -> int:
        """Return 0 for exact or explained, 1 for unexplained, 3 for incomplete."""
        from costproof.compare.verdict import exit_code

        return exit_code(self.discrepancy)

    def stages(self) -> pd.DataFrame:
        """Return one row per stage."""
        return _frame(self.figures)

    def findings(self) -> pd.DataFrame:
        """Return one row per finding."""
        return _frame(self.discrepancy)

    def nodes(self) -> pd.DataFrame:
        """Return one row per source and cost node."""
        return _frame(self.capture)

    def modules(self) -> pd.DataFrame:
        """Return one row per module, with each source's counts of the module and its submodules."""
        from costproof.views.frames import module_rows

        return _frame(module_rows(self.capture))


def _frame(value: object) -> pd.DataFrame:
    from costproof.views.frames import frame

    return frame(value)


_OPEN: Final = ("unexplained", "unsupported")
_SETTLED: Final = ("explained", "exact")
_ONE_SOURCE: Final = ("analytic-only", "static-only", "dynamic-only", "isolated-only", "headers-only")
_MOST_METRICS: Final = 2
GOOD: Final = frozenset({"exact", "explained", "not-executed"})
"""Statuses that leave no difference open."""


def worst(findings: list[Finding]) -> str:
    """Return the worst status among findings, or ``—`` if there are none.

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
    """Return the worst status of a stage, with the metrics that have it unless FLOPs do: ``explained (params)``."""
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
