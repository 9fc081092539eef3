"""Compare third-party counters and the user's own numbers with costproof's count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from costproof.claims import Judgement
from costproof.compare.findings import CounterComparison, Discrepancy
from costproof.ledger.capture import Capture
from costproof.ledger.counter import CounterUsage
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK, Absent
from costproof.ledger.metrics import Conventions
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload


@dataclass(frozen=True, slots=True)
class OwnNumber:
    """A number supplied by the user, judged as ``costproof check`` judges a claim."""

    name: str
    unit: str
    """``flop`` or ``mac`` as the user states it; empty if unknown."""
    judgement: Judgement
    printed_by: tuple[str, ...] = ()
    """Counters that print the same number: ``fvcore on sam[crops]``."""

    @property
    def settled(self) -> bool:
        """Return whether the number is right, or wrong for a known cause."""
        return self.judgement.status in ("right", "explained")


@dataclass(frozen=True, slots=True)
class CounterReport(NotebookRepr):
    """Results of all third-party counters on one target and workload, with one decode step for all of decode."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    compared: CounterComparison
    spent: dict[str, CounterUsage] = field(default_factory=dict)
    """Time and memory that each counter needed, by counter."""
    own: tuple[OwnNumber, ...] = ()

    def __repr__(self) -> str:
        """Return one line; ``compared`` has the findings."""
        tools = len(self.compared.tools)
        return f"CounterReport({self.target.name} at {self.workload.name}: {tools} counters)"

    @property
    def exit_code(self) -> int:
        """Return 1 for an unexplained difference, else 3 if any count is incomplete, else 0."""
        if any(f.residual for f in self.compared.findings) or any(not o.settled for o in self.own):
            return EXIT_FINDINGS
        return EXIT_INCOMPLETE if self.compared.incomplete else EXIT_OK


COUNTERS: Final = FileKind(name="costproof/counters", version=(2, 4), type=CounterReport)


def counter_report(capture: Capture, found: Discrepancy, spent: dict[str, CounterUsage]) -> CounterReport:
    """Return the results of a capture's third-party FLOP counters, compared with our own count.

    Raises:
        Absent: none ran.
    """
    compared = found.counters
    if compared is None:
        raise Absent(
            "the capture has no third-party counters",
            where="$.counters",
            expected="a capture made with counters",
            fix="costproof report TARGET --counters all",
        )
    return CounterReport(capture.conventions, capture.target, capture.workload, capture.environment, compared, spent)
