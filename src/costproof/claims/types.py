"""Define the records of claims: published numbers and formulas, their explanations, and the judgements."""

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
"""Stage name for claims about the sum over all stages."""

ClaimStatus = Literal["right", "explained", "refuted", "undetermined", "unexplained"]
"""Outcome of judging a claim.

Equal to the truth, explained by known causes, not reached at any sequence length under any convention (``refuted``),
fits that may be coincidence (``undetermined``), or no fit.
"""

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
    """A published number or formula, with its stage, metric and modules."""

    id: str
    where: str
    """Path in the claims file, for error messages."""
    stage: str
    metric: Metric
    value: Amount | Formula
    invocation: str = ""
    """Invocation of the stage; empty for all invocations together."""
    module: str = ""
    """Glob on module paths; empty for all modules of the stage."""
    conventions: dict[str, str] = field(default_factory=dict)
    """Counting conventions that the source of the claim states, as values by convention."""
    at: dict[str, int] = field(default_factory=dict)
    """Symbol values to which the source restricts the claim, by symbol; other symbols may vary."""
    holds: tuple[Condition, ...] = ()
    """Conditions on the workload's symbols under which the claim applies."""


@dataclass(frozen=True, slots=True)
class ClaimsFile:
    """The validated content of a claims file."""

    title: str
    source: str
    target: str
    """Name of the target; empty for any target."""
    workload: dict[str, str]
    """Settings of the claimed workload, by the names of the command-line options."""
    claims: tuple[PublishedClaim, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One mistake in an explanation, with its share of the difference between the true number and the claim."""

    cause: str
    what: str
    amount: int
    """Amount that the mistake adds after the preceding ones; rounded down if fractional."""
    evidence: tuple[str, ...]
    stated: bool = False
    """Whether the claim itself states this convention; otherwise the search found it."""
    or_else: tuple[str, ...] = ()
    """Other causes with exactly the same effect on this claim."""


@dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """A smallest set of mistakes that turns the true number into the claim."""

    steps: tuple[Step, ...]
    reaches: int


@dataclass(frozen=True, slots=True)
class Place:
    """Cost of a claim's stage at one text length."""

    length: int
    number: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Comparison of a claim with the cost at every text length, under one set of counting conventions."""

    causes: tuple[str, ...]
    """The conventions as causes; empty for costproof's own conventions."""
    below: Place | None
    """The largest length whose cost is below the claim; ``None`` if the shortest length already costs as much."""
    above: Place | None
    """The smallest length whose cost is above the claim; ``None`` if no length up to the longest costs as much."""
    fits: tuple[Place, Place] | None
    """The first and the last length whose cost would be printed as claimed; ``None`` if no length fits."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Comparison of a claim with the cost at all prompt or context lengths of an otherwise unchanged workload."""

    symbol: str
    """Symbol of the varied length: ``S`` for the prompt, ``P`` for the context of the first decode step."""
    start: int
    """The shortest length."""
    model: tuple[str, ...]
    """Causes that describe another model, implied by the parameter count of the same row; empty for the true model."""
    readings: tuple[Reading, ...]
    coincidences: str
    """Expected number of convention sets that fit at some length by coincidence, as a fraction."""
    longest: int | None = None
    """The longest length, the model's number of positions; ``None`` if the configuration has no limit."""


@dataclass(frozen=True, slots=True)
class FormulaCounterexample:
    """The smallest values of the symbols at which a claimed formula differs from the truth."""

    values: dict[str, int]
    claimed: str
    """Value of the claimed formula: an integer or a fraction."""
    truth: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of judging one claim: verdict, true number, and explanations."""

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
    """Claim minus true number; for a rounded claim, the difference to the nearest number that it may stand for."""
    explanations: tuple[ClaimExplanation, ...]
    residual: int
    """The part of ``delta`` that no cause explains: 0 for ``right`` and ``explained``."""
    residual_expression: str | None = None
    """Claimed minus true formula in the symbols of the workload, factored."""
    counterexample: FormulaCounterexample | None = None
    """Sizes at which a formula is wrong although it is right at the claim's workload."""
    lengths: tuple[Lengths, ...] = ()
    """Comparison of a number without an explanation with the cost at other sequence lengths."""
    tried: int = 0
    """Number of sets of causes tried."""
    coincidences: str = "0"
    """Expected number of coincidental fits among all sets, simple relations and lengths tried, as a fraction."""
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
    """Description of the source of the true numbers, and of how well they are verified."""
    verdict: ClaimStatus
    """Status of the worst claim, in the order of :data:`WORST_FIRST`."""
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
