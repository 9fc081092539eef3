"""Published numbers as data: claims, the interval that printed digits stand for, verdicts."""

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
"""The stage name that stands for all stages together."""

Status = Literal["right", "explained", "refuted", "undetermined", "unexplained"]
"""``refuted``: the truth is printed like this at no length, however it is counted. ``undetermined``: so few
digits are printed that several sets of causes would fit by chance."""

WORST_FIRST: Final[tuple[Status, ...]] = ("unexplained", "undetermined", "refuted", "explained", "right")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number as printed: every integer from ``low`` to ``high`` would have been printed like this."""

    text: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression in the symbols of workload and configuration."""

    text: str


@dataclass(frozen=True, slots=True)
class PublishedClaim:
    """One number or formula that somebody claims, and what it is about."""

    id: str
    where: str
    """Path in the claims file, for messages."""
    stage: str
    metric: Metric
    value: Amount | Formula
    invocation: str = ""
    """Empty: all invocations together."""
    module: str = ""
    """Glob on module paths; empty: all modules of the stage."""
    conventions: dict[str, str] = field(default_factory=dict)
    """What is known of the conventions that the claim was made under."""
    at: dict[str, int] = field(default_factory=dict)
    """Symbols of the workload at whose value alone the claim is made; the other symbols may vary."""
    holds: tuple[Condition, ...] = ()
    """The conditions on these symbols under which the claim is made."""


@dataclass(frozen=True, slots=True)
class ClaimsFile:
    """A claims file, read and checked."""

    title: str
    source: str
    target: str
    """Empty: any target."""
    workload: dict[str, str]
    """Settings of the workload that the claims are about, as the options of the command line name them."""
    claims: tuple[PublishedClaim, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One named cause on the way from the truth to the claim."""

    cause: str
    what: str
    amount: int
    """What it adds to the number; rounded down where a rule gives a fraction."""
    evidence: tuple[str, ...]
    stated: bool = False
    """Whether the claim itself states this convention; otherwise the search found it."""
    or_else: tuple[str, ...] = ()
    """Other causes that do exactly the same here."""


@dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """A set of causes, as small as possible, and the number that they lead to."""

    steps: tuple[Step, ...]
    reaches: int


@dataclass(frozen=True, slots=True)
class Place:
    """What a claim's stage costs at one length."""

    length: int
    number: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to count the same work, held against a claim at every length."""

    causes: tuple[str, ...]
    """The conventions; none is ours."""
    below: Place | None
    """The largest length whose number is below the claim; ``None`` if the shortest one costs more."""
    above: Place | None
    """The smallest length whose number is above; ``None`` if it does not grow, or costs less at the longest one."""
    fits: tuple[Place, Place] | None
    """The first and the last length whose number would be printed as claimed."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A claim held against all lengths of prompt or context, the rest of the workload as it is."""

    symbol: str
    """``S``, the prompt, or ``P``, the context of the first decode step."""
    start: int
    """The shortest length."""
    model: tuple[str, ...]
    """Causes that make the model that the parameters of the claim's row describe; none: the truth."""
    readings: tuple[Reading, ...]
    coincidences: str
    """How many readings would be expected to fit at some length by chance, as a fraction."""
    longest: int | None = None
    """The longest length: the positions that the model has; ``None`` if its configuration names no limit."""


@dataclass(frozen=True, slots=True)
class FormulaCounterexample:
    """The smallest values of the symbols at which a formula is not the truth."""

    values: dict[str, int]
    claimed: str
    """An integer, or a fraction where the formula gives one."""
    truth: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one claim."""

    id: str
    stage: str
    metric: Metric
    claimed: str
    invocation: str
    module: str
    status: Status
    low: int
    high: int
    truth: int
    delta: int
    """Claim minus truth; for a rounded claim that of the nearest number it may stand for."""
    explanations: tuple[ClaimExplanation, ...]
    residual: int
    """What no cause explains: 0 for ``right`` and ``explained``."""
    residual_expression: str | None = None
    """For a formula: claim minus truth in the symbols of the workload, factored."""
    counterexample: FormulaCounterexample | None = None
    """For a formula that is right at the workload alone."""
    lengths: tuple[Lengths, ...] = ()
    """For a number without an explanation: what it would be at other lengths."""
    tried: int = 0
    """Sets of causes that were tried."""
    coincidences: str = "0"
    """How many of them, of the simple relations and of the lengths that were tried would be expected to fit by
    chance, as a fraction."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClaimsReport(NotebookRepr):
    """The verdicts on a claims file."""

    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    title: str
    source: str
    truth: str
    """What the claims were held against, and how well that is founded."""
    verdict: Status
    """The status of the worst claim: see :data:`WORST_FIRST`."""
    judgements: tuple[Judgement, ...]

    @property
    def exit_code(self) -> int:
        """0 if all claims are right or explained, 3 if one is about bytes of a quantised checkpoint, else 1."""
        if unknown_bytes(self.target) & {j.metric for j in self.judgements}:
            return EXIT_INCOMPLETE
        return EXIT_OK if self.verdict in ("right", "explained") else EXIT_FINDINGS

    def __repr__(self) -> str:
        """One line: ``judgements`` has the verdicts."""
        of = f"{self.target.name} at {self.workload.name}"
        return f"ClaimsReport({of}: {self.verdict}, {plural(len(self.judgements), 'claim')})"


CLAIMS: Final = FileKind(name="costproof/claims", version=(2, 4), type=ClaimsReport)
