"""What a comparison says: causes, findings, and the discrepancy file that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from costproof.ledger.counter import CounterInfo
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import UnknownOp
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload

Status = Literal[
    "exact",
    "explained",
    "unexplained",
    "analytic-only",
    "static-only",
    "dynamic-only",
    "isolated-only",
    "unsupported",
    "not-executed",
]
"""``unsupported`` is a quantity that a source could not count; ``not-executed`` one that only the
formulas give, because its stage does not run at this workload."""

Verdict = Literal["exact", "explained", "unexplained", "incomplete"]

Level = Literal["module", "stage", "total", "trace", "judge", "source"]

CauseKind = Literal[
    "convention",
    "padding",
    "uncounted_operator",
    "workload_shape",
    "unexecuted_parameters",
    "decomposition",
    "expert_kernel",
    "vector_counted",
    "double_counting",
    "call_count",
    "formula_term",
    "source_disagreement",
    "trace_difference",
    "judge_difference",
    "silent_source",
    "input_sizes",
]

CAUSES: Final[dict[CauseKind, str]] = {
    "convention": "the sources state different conventions; brought together, the numbers agree",
    "padding": "one source states that it leaves out the padded positions of window attention",
    "uncounted_operator": "a source met an operator that it has no rule for",
    "workload_shape": "a source states that it counted other invocations than the workload has",
    "unexecuted_parameters": "parameters that are loaded, and that no operator of the run reads",
    "decomposition": "the sources execute the same work with different operators",
    "expert_kernel": "the sources execute the experts with different kernels",
    "vector_counted": "a counter adds norms, biases or elementwise work to its products",
    "double_counting": "a counter counts an operator, and again the operators that it is made of",
    "call_count": "the sources run the module a different number of times, at the same cost per call",
    "formula_term": "a closed formula lacks a term, has one too many, or has a wrong factor",
    "source_disagreement": "two sources that should see the same work do not",
    "trace_difference": "the two dynamic tracers do not see the same calls",
    "judge_difference": "torch's own formulas count the same run otherwise",
    "silent_source": "a source does not give a metric that it is on record to give for this target",
    "input_sizes": "what goes into a graph has other sizes than those that the costs are evaluated at",
}
"""Every kind of cause with its meaning. The last seven name a defect, so they explain nothing away."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A named, signed, exactly sized part of a delta."""

    kind: CauseKind
    amount: int
    evidence: tuple[str, ...] = ()
    """Ids of the cost nodes (or names of operators) that show it."""
    expression: str | None = None
    """The amount for one module in the workload's symbols, where it is known in symbols."""
    accepted: bool = True
    """Whether it explains its amount. A wrong formula is named and located, but stays a residual."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity, compared over all sources that give it.

    ``delta`` is the first source of ``analytic, static, dynamic, isolated, …`` that takes part, minus
    ``reference``. The reference is ``dynamic`` where it takes part; another source stands in for
    it when that one differs and dynamic does not, so a delta of 0 means that all sources agree.
    """

    id: str
    """``stage[invocation]/pattern:kind#metric``; ``stage#metric`` and ``total#metric`` for sums."""
    level: Level
    stage: str
    """``total`` for sums over all stages."""
    invocation: str
    """Empty for metrics that belong to a stage whatever runs through it, and for sums."""
    module: str
    """Pattern of module paths, ``layers.[0,1,3-4].attn``; empty for the root and for sums."""
    kind: str
    """Operator kind in words common to all sources; empty for metrics of a module as a whole."""
    metric: str
    status: Status
    values: dict[str, int | None]
    """By source, summed over the ``count`` modules; a source that does not give the metric is absent,
    ``None`` is unknown."""
    delta: int | None
    causes: tuple[Cause, ...]
    residual: int | None
    """``delta`` minus the amounts of the accepted causes; ``None`` where ``delta`` is."""
    reference: str | None = None
    """The source that ``delta`` is measured against."""
    deltas: dict[str, int] = field(default_factory=dict)
    """``first-second`` -> difference, for every pair of sources that differs."""
    count: int = 1
    """Modules that the pattern stands for."""
    error_expression: str | None = None
    """Analytic minus static for ONE module of the pattern, in the workload's symbols; ``None`` without static."""
    evidence: tuple[str, ...] = ()
    """What each source calls it, with its own operators or nodes."""


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """How much of the model one source has counted."""

    known_flops: int | None
    """FLOPs of everything that the source has a number for; ``None`` if it gives no FLOPs."""
    bound_flops: int | None
    """Upper bound of the FLOPs of its unknown operators; ``None`` where not even that is known."""
    unknown_ops: tuple[UnknownOp, ...]
    unknown_nodes: tuple[str, ...]
    """Nodes with a cost that the source could not give."""
    stages: tuple[str, ...]
    metrics: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenBy:
    """The quantities that exactly these sources give."""

    sources: tuple[str, ...]
    quantities: int
    """One per module, operator kind and metric, of modules; those of one source are compared with nothing."""


@dataclass(frozen=True, slots=True)
class Judges:
    """What the second judge of the dynamic source says: torch's own formulas, at the dispatcher."""

    agreed: int
    """Quantities (stage, invocation, module, operator) on which both judges agree."""
    flops: int
    """What these add up to."""
    alone: tuple[str, ...]
    """Where our rules are the only judge, one clause each."""


@dataclass(frozen=True, slots=True)
class CounterFinding:
    """One counter on one invocation of one stage, against the truth."""

    counter: str
    stage: str
    invocation: str
    value: int | None
    """The tool's figure in its own unit; ``None`` where it failed."""
    normalised: int | None
    """The same in FLOPs, 2 per multiply-accumulate."""
    truth: int | None
    """Our own count of the same forward, in FLOPs; ``None`` where a part of it is unknown."""
    delta: int | None
    """``value - truth``."""
    causes: tuple[Cause, ...]
    residual: int | None
    covered: int | None
    """FLOPs of the truth that the tool's own rows have."""
    error: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """``exact``, ``explained``, ``unexplained``; ``failed``, ``skipped``, ``not compared`` (no truth)."""
        if self.error is not None:
            return "failed"
        if self.truth is None:
            return "skipped" if self.value is None else "not compared"
        return "unexplained" if self.residual else "explained" if self.causes else "exact"


@dataclass(frozen=True, slots=True)
class CounterTool:
    """A counter, and which version of it ran."""

    info: CounterInfo
    version: str | None
    """``None``: not installed, so it was skipped."""


@dataclass(frozen=True, slots=True)
class CounterComparison:
    """Third-party counters beside our own count. No part of the verdict: they prove nothing about us."""

    tools: tuple[CounterTool, ...]
    totals: tuple[CounterFinding, ...]
    """One row a counter: the sum over what was counted."""
    findings: tuple[CounterFinding, ...]
    """Counter by counter, one for each invocation of each stage."""
    checked: tuple[str, ...] = ()
    """Where the truth was compared with the closed formulas, and how that ended."""
    unknown: tuple[str, ...] = ()
    """Where the truth is unknown, so that nothing is compared there, and why."""

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What failed, one sentence each; empty if every counter that ran has its comparison."""
        failed = tuple(f"the counter {f.counter} failed: {f.error}" for f in self.totals if f.error is not None)
        return (*(f"the truth is unknown: {why}" for why in self.unknown), *failed)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to say below the tables."""
        return (*(f"The truth is unknown: {why}" for why in self.unknown), *self.checked)

    def tool(self, name: str) -> CounterTool:
        """Return the counter of that name."""
        return next(t for t in self.tools if t.info.name == name)


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """All findings of one capture."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    verdict: Verdict
    findings: tuple[Finding, ...]
    """Totals first, then stages, then modules, each in the order of the model."""
    coverage: dict[str, SourceCoverage]
    incomplete: tuple[str, ...] = ()
    """Why nothing may be claimed, one sentence each; empty unless the verdict is ``incomplete``."""
    judges: Judges | None = None
    """What the second judge confirms; ``None`` in files of before it."""
    counters: CounterComparison | None = None
    """Third-party counters, if the capture has any."""
    given_by: tuple[GivenBy, ...] = ()
    """How many quantities which sources give, the most sources first; empty in files of before it."""

    def __repr__(self) -> str:
        """One line: a notebook must not print thousands of findings."""
        of = f"{self.target.name} at {self.workload.name}"
        return f"Discrepancy({of}: {self.verdict}, {plural(len(self.findings), 'finding')})"

    def select(self, *, level: Level | None = None, status: Status | None = None) -> tuple[Finding, ...]:
        """Return the findings of a level and a status (None: of any)."""
        return tuple(
            f for f in self.findings if (level is None or f.level == level) and (status is None or f.status == status)
        )

    def finding(self, finding_id: str) -> Finding:
        """Return the finding of that id.

        Raises:
            BadInput: there is none.
        """
        known = {f.id: f for f in self.findings}
        if finding_id not in known:
            raise BadInput("no such finding", where=finding_id, fix=did_you_mean(finding_id, known))
        return known[finding_id]


DISCREPANCY: Final = FileKind(name="costproof/discrepancy", version=(2, 4), type=Discrepancy)
