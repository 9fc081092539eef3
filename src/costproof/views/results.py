"""Hold the results of one run: its capture, and everything computed from it on first use."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from costproof.ledger.capture import Capture
from costproof.ledger.notebook import ReportRepr

if TYPE_CHECKING:
    import pandas as pd

    from costproof.compare.findings import Discrepancy
    from costproof.estimate.roofline import Roofline
    from costproof.ledger.counter import CounterUsage
    from costproof.ledger.profile import Profile
    from costproof.views.static_compute import StaticCompute


@dataclass(frozen=True, eq=False, repr=False)
class Results(ReportRepr):
    """A capture and everything computed from it, each part once and on first use."""

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
        """Return :attr:`static` without formulas, which take most of the time."""
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
        """Return one row per module, with the counts of each source in it and everything inside it."""
        from costproof.views.frames import module_rows

        return _frame(module_rows(self.capture))


def _frame(value: object) -> pd.DataFrame:
    from costproof.views.frames import frame

    return frame(value)
