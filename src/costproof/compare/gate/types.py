"""Define the records of a gate's result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from costproof.compare.diff.types import Changes, Side
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import Metric
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind

CheckStatus = Literal["passed", "allowed", "over", "unknown"]
State = Literal["used", "unused", "expired"]


@dataclass(frozen=True, slots=True)
class Check:
    """The check of one limit at one place (metric, stage and role) in one source."""

    metric: Metric
    stage: str
    """Stage; empty for the sum over all stages."""
    role: str
    """Role of the model part; empty for the whole stage."""
    source: str
    base: int | None
    head: int | None
    delta: int | None
    limit: str
    """Text of the limit in the policy: ``increase 1 %``, ``budget 3.1 T``."""
    most: int | None
    """The largest number that passes without an allowance; ``None`` if the base is unknown."""
    status: CheckStatus
    why: str
    """Description of the allowances that apply, or the reason why the result is unknown."""
    line: int
    """Line of the limit in the policy file."""
    allowed_by: tuple[int, ...] = ()
    """Policy lines of the allowances that apply, whether they suffice or not."""

    @property
    def place(self) -> str:
        """Return the place as text: ``prefill/text.layer.mlp``, or ``total`` for all stages."""
        return "/".join(filter(None, (self.stage or ("*" if self.role else "total"), self.role)))

    @property
    def over(self) -> int:
        """Amount above the limit, in units of the metric."""
        return 0 if self.head is None or self.most is None else max(0, self.head - self.most)


@dataclass(frozen=True, slots=True)
class AllowanceUse:
    """An allowance in the policy, and whether it was used."""

    place: str
    increase: str
    reason: str
    until: str
    state: State
    line: int


@dataclass(frozen=True, slots=True)
class Gate(NotebookRepr):
    """The result of a gate: whether the head is within all limits of a policy."""

    base: Side
    head: Side
    policy: str
    """Path of the policy file, as the user gave it."""
    verdict: Literal["passed", "over", "incomplete"]
    checks: tuple[Check, ...]
    allowances: tuple[AllowanceUse, ...]
    config: Changes
    workload: Changes
    incomplete: tuple[str, ...]
    """Reasons other than unknown numbers why base and head cannot be checked against the policy."""
    silent: tuple[str, ...] = ()
    """Sentences on metrics that a source has on one side only although both run the same work, as findings."""

    @property
    def exit_code(self) -> int:
        """0 if passed; 1 if a limit is exceeded; else 3 if incomplete, 1 if a source lacks a metric on one side."""
        return {"passed": EXIT_OK, "over": EXIT_FINDINGS, "incomplete": EXIT_INCOMPLETE}[self.verdict]

    def of(self, *statuses: CheckStatus) -> list[Check]:
        """Return the checks with a status, those furthest above their limit first."""
        found = [c for c in self.checks if c.status in statuses]
        return sorted(found, key=lambda c: (statuses.index(c.status), -c.over))

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"Gate({self.base.name} -> {self.head.name}: {self.verdict}, {plural(len(self.checks), 'check')})"


GATE: Final = FileKind(name="costproof/gate", version=(1, 2), type=Gate)
