"""Define the records of claims: published numbers and formulas, their explanations, and the report of judgements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import Metric
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload, unknown_bytes

if TYPE_CHECKING:
    from costproof.algebra.conditions import Condition

TOTAL: Final = "total"
"""The stage name of a claim about the sum of all stages."""

ClaimStatus = Literal["right", "explained", "refuted", "undetermined", "unexplained"]
"""The outcome for a claim: equal to the truth, explained by known causes, not reached at any sequence length under any
convention (``refuted``), fits that may be coincidence (``undetermined``), or no fit."""

WORST_FIRST: Final[tuple[ClaimStatus, ...]] = ("unexplained", "undetermined", "refuted", "explained", "right")


@dataclass(frozen=True, slots=True)
class Amount:
    """A printed number, as the interval from ``low`` to ``high`` of the integers that round to it."""

    text: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Formula:
    """A claimed expression in the symbols of workload and configuration."""

    text: str


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """A published number or formula, with the stage, metric and modules that it is about."""

    id: str
    where: str
    """Path in the claims file, for error messages."""
    stage: str
    metric: Metric
    value: Amount | Formula
    invocation: str = ""
    """Empty: all invocations together."""
    module: str = ""
    """Glob on module paths; empty: all modules of the stage."""
    conventions: dict[str, str] = field(default_factory=dict)
    """Convention -> value, for the counting conventions that the source of the claim states."""
    at: dict[str, int] = field(default_factory=dict)
    """Symbol of the workload -> the only value for which the claim is made; other symbols may vary."""
    holds: tuple[Condition, ...] = ()
    """Conditions on the workload's symbols under which the claim is made."""


@dataclass(frozen=True, slots=True)
class ClaimsFile:
    """The validated content of a claims file."""

    title: str
    source: str
    target: str
    """Name of the target; empty: any target."""
    workload: dict[str, str]
    """Settings of the workload that the claims are about, by the names of the command-line options."""
    claims: tuple[PublishedClaim, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One mistake in an explanation, with its share of the difference between our number and the claim."""

    cause: str
    what: str
    amount: int
    """The amount that it adds to the number, given the causes before it; rounded down if fractional."""
    evidence: tuple[str, ...]
    stated: bool = False
    """Whether the claim states this convention itself; otherwise the search found it."""
    or_else: tuple[str, ...] = ()
    """Other causes with exactly the same effect on this claim."""


@dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """A smallest set of mistakes that turns our number into the claim."""

    steps: tuple[Step, ...]
    reaches: int


@dataclass(frozen=True, slots=True)
class Place:
    """The cost of a claim's stage at one text length."""

    length: int
    number: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A claim compared with the cost at every length, under one set of counting conventions."""

    causes: tuple[str, ...]
    """The conventions; empty for those of costproof."""
    below: Place | None
    """The largest length whose cost is below the claim; ``None`` if the shortest length costs at least as much."""
    above: Place | None
    """The smallest length whose cost is above the claim; ``None`` if no length up to the longest costs as much."""
    fits: tuple[Place, Place] | None
    """The first and the last length whose cost would be printed as claimed; ``None`` if no length fits."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A claim compared with the cost at all lengths of prompt or context, for an otherwise unchanged workload."""

    symbol: str
    """The length that varies: ``S``, of the prompt, or ``P``, of the context of the first decode step."""
    start: int
    """The shortest length."""
    model: tuple[str, ...]
    """Causes that give the model which the claimed parameters of the same row describe; empty for the true model."""
    readings: tuple[Reading, ...]
    coincidences: str
    """The expected number of readings that fit at some length by coincidence, as a fraction."""
    longest: int | None = None
    """The longest length, which is the model's number of positions; ``None`` if its configuration has no limit."""


@dataclass(frozen=True, slots=True)
class FormulaCounterexample:
    """The smallest values of the symbols at which a claimed formula differs from the truth."""

    values: dict[str, int]
    claimed: str
    """Value of the claimed formula: an integer or a fraction."""
    truth: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of judging one claim: verdict, our number, and explanations."""

    id: str
    stage: str
    metric: Metric
    claimed: str
    invocation: str
    module: str
    status: ClaimStatus
    low: int
    high: int
    truth: int
    delta: int
    """Claim minus truth; for a rounded claim, the difference to the nearest number that it may represent."""
    explanations: tuple[ClaimExplanation, ...]
    residual: int
    """The part of ``delta`` that no cause explains: 0 for ``right`` and ``explained``."""
    residual_expression: str | None = None
    """For a formula: claim minus truth in the symbols of the workload, factored."""
    counterexample: FormulaCounterexample | None = None
    """For a formula that equals the truth at the claim's workload, but not in general."""
    lengths: tuple[Lengths, ...] = ()
    """For a number without an explanation: the comparison with the cost at other sequence lengths."""
    tried: int = 0
    """Number of sets of causes tried."""
    coincidences: str = "0"
    """The expected number of coincidental fits among the sets, simple relations and lengths tried, as a fraction."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClaimsReport(NotebookRepr):
    """The judgements of all claims of a file."""

    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    title: str
    source: str
    truth: str
    """The source of the true numbers, and how well it is verified."""
    verdict: ClaimStatus
    """The status of the worst claim: see :data:`WORST_FIRST`."""
    judgements: tuple[Judgement, ...]

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 if all claims are right or explained, else 1.

        A claim that needs the unknown bytes of a quantised checkpoint decides nothing: 3, unless another one gives 1.
        """
        unknown = unknown_bytes(self.target, self.workload)
        if any(j.status not in ("right", "explained") for j in self.judgements if j.metric not in unknown):
            return EXIT_FINDINGS
        return EXIT_INCOMPLETE if unknown & {j.metric for j in self.judgements} else EXIT_OK

    def __repr__(self) -> str:
        """Return a summary in one line; ``judgements`` has the details."""
        of = f"{self.target.name} at {self.workload.name}"
        return f"ClaimsReport({of}: {self.verdict}, {plural(len(self.judgements), 'claim')})"


CLAIMS: Final = FileKind(name="costproof/claims", version=(2, 4), type=ClaimsReport)
