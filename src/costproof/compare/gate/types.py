"""What a gate found, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from costproof.compare.diff.types import Changes, Side
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import Metric
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind

Status = Literal["passed", "allowed", "over", "unknown"]
State = Literal["used", "unused", "expired"]


@dataclass(frozen=True, slots=True)
class Check:
    """One limit at one place, by one source."""

    metric: Metric
    stage: str
    """Empty: all stages together."""
    role: str
    """Empty: the whole stage."""
    source: str
    base: int | None
    head: int | None
    delta: int | None
    limit: str
    """In the words of the policy: ``increase 1 %``, ``budget 3.1 T``."""
    most: int | None
    """The largest number that passes without an allowance; ``None`` where the base is unknown."""
    status: Status
    why: str
    """What an allowance has to do with it, or why it is unknown."""
    line: int
    """Of the limit in the policy file."""
    allowed_by: tuple[int, ...] = ()
    """Lines of the allowances that count for it, whether they suffice or not."""

    @property
    def place(self) -> str:
        """``prefill/text.layer.mlp``; ``total`` where all stages are meant."""
        return "/".join(filter(None, (self.stage or ("*" if self.role else "total"), self.role)))

    @property
    def over(self) -> int:
        """Amount above the limit, in units of the metric."""
        return 0 if self.head is None or self.most is None else max(0, self.head - self.most)


@dataclass(frozen=True, slots=True)
class AllowanceUse:
    """What became of an allowance."""

    place: str
    increase: str
    reason: str
    until: str
    state: State
    line: int


@dataclass(frozen=True, slots=True)
class Gate(NotebookRepr):
    """Whether a change may pass."""

    base: Side
    head: Side
    policy: str
    """The policy file, as it was named."""
    verdict: Literal["passed", "over", "incomplete"]
    checks: tuple[Check, ...]
    allowances: tuple[AllowanceUse, ...]
    config: Changes
    workload: Changes
    incomplete: tuple[str, ...]
    """What else than an unknown number keeps the two from being held against the policy."""
    silent: tuple[str, ...] = ()
    """Metrics that a source gives on one side only, though both are the same work: findings."""

    @property
    def exit_code(self) -> int:
        """0 passed, 1 over a limit or a source fell silent, 3 incomplete."""
        return {"passed": EXIT_OK, "over": EXIT_FINDINGS, "incomplete": EXIT_INCOMPLETE}[self.verdict]

    def of(self, *statuses: Status) -> list[Check]:
        """Return the checks with a status, those furthest above their limit first."""
        found = [c for c in self.checks if c.status in statuses]
        return sorted(found, key=lambda c: (statuses.index(c.status), -c.over))

    def __repr__(self) -> str:
        """One line."""
        return f"Gate({self.base.name} -> {self.head.name}: {self.verdict}, {plural(len(self.checks), 'check')})"


GATE: Final = FileKind(name="costproof/gate", version=(1, 2), type=Gate)
