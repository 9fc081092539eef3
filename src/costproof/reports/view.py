"""A capture as the formats see it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from costproof.ledger.capture import Capture

if TYPE_CHECKING:
    from costproof.compare import Discrepancy
    from costproof.reports.static_compute import StaticCompute


class View:
    """A capture and what follows from it; each is computed once, when a format first asks."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture

    @cached_property
    def discrepancy(self) -> Discrepancy:
        """The comparison of the capture's sources."""
        from costproof.compare import compare

        return compare(self.capture)

    @cached_property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        from costproof.compare import verdict_sentence

        return verdict_sentence(self.discrepancy)

    @cached_property
    def static(self) -> StaticCompute:
        """What each stage costs."""
        from costproof.reports.static_compute import static_compute

        return static_compute(self.capture, self.discrepancy.verdict)

    @cached_property
    def figures(self) -> StaticCompute:
        """:attr:`static` without its formulas."""
        from costproof.reports.static_compute import static_compute

        return static_compute(self.capture, self.discrepancy.verdict, formulas=False)
