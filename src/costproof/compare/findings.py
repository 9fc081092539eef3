"""Define the records of a comparison: causes, findings, and the discrepancy file with all of them."""

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

FindingStatus = Literal[
    "exact",
    "explained",
    "unexplained",
    "analytic-only",
    "static-only",
    "dynamic-only",
    "isolated-only",
    "headers-only",
    "unsupported",
    "not-executed",
]
"""The status of a compared quantity.

``unsupported``: a source could not count it; ``not-executed``: only the formulas give it, because its stage does not
run at this workload.
"""

ComparisonVerdict = Literal["exact", "explained", "unexplained", "incomplete"]

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
    "checkpoint_contents",
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
    "checkpoint_contents": "a checkpoint, or what is loaded of it, has more or less than its configuration states",
    "call_count": "the sources run the module a different number of times, at the same cost per call",
    "formula_term": "a closed formula lacks a term, has one too many, or has a wrong factor",
    "source_disagreement": "two sources that should see the same work do not",
    "trace_difference": "the two dynamic tracers do not see the same calls",
    "judge_difference": "torch's own formulas count the same run otherwise",
    "silent_source": "a source does not give a metric that it is on record to give for this target",
    "input_sizes": "what goes into a graph has other sizes than those that the costs are evaluated at",
}
"""Meanings of the kinds of causes, by kind; the last seven name a defect and do not reduce the residual."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A named part of a difference, with its exact signed amount."""

    kind: CauseKind
    amount: int
    evidence: tuple[str, ...] = ()
    """Ids of cost nodes, or names of operators, in which the cause is visible."""
    expression: str | None = None
    """The amount per module in the workload's symbols; ``None`` if no expression is known."""
    accepted: bool = True
    """Whether the cause explains its amount; the amount of a wrong formula stays in the residual."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity, compared in all sources that count it.

    ``delta`` is the value of the first source among ``analytic, static, dynamic, isolated, …`` that takes part, minus
    the value of ``reference``. The reference is ``dynamic`` if it takes part, unless it agrees with the first source
    and another source does not: then it is that source. A delta of 0 therefore means that all sources agree.
    """

    id: str
    """Id ``stage[invocation]/pattern:kind#metric``; ``stage#metric`` and ``total#metric`` for sums."""
    level: Level
    stage: str
    """Name of the stage; ``total`` for sums over all stages."""
    invocation: str
    """Id of the call; empty for metrics of a whole stage, such as parameters, and for sums."""
    module: str
    """Pattern of module paths, ``layers.[0,1,3-4].attn``; empty for the root and for sums."""
    kind: str
    """Operator kind, spelled alike for all sources; empty for metrics of a whole module."""
    metric: str
    status: FindingStatus
    values: dict[str, int | None]
    """Value by source, summed over the ``count`` modules; ``None`` if unknown, absent if not counted by the source."""
    delta: int | None
    causes: tuple[Cause, ...]
    residual: int | None
    """``delta`` minus the amounts of the accepted causes; ``None`` if ``delta`` is ``None``."""
    reference: str | None = None
    """The source that ``delta`` is measured against."""
    deltas: dict[str, int] = field(default_factory=dict)
    """Difference of every pair of sources that differ, by ``first-second``."""
    count: int = 1
    """Number of modules that match the pattern."""
    error_expression: str | None = None
    """Analytic minus static formula of a single module, in the workload's symbols; ``None`` without a static one."""
    evidence: tuple[str, ...] = ()
    """Operators or nodes that contribute to the quantity, by source, under the source's own names."""


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """Extent to which one source has counted the model."""

    known_flops: int | None
    """FLOPs of all nodes that the source could count; ``None`` if the source does not count FLOPs."""
    bound_flops: int | None
    """Upper bound of the FLOPs of the source's unknown operators; ``None`` if no bound is known."""
    unknown_ops: tuple[UnknownOp, ...]
    unknown_nodes: tuple[str, ...]
    """Nodes with a cost that this source could not determine."""
    stages: tuple[str, ...]
    metrics: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenBy:
    """The number of quantities that exactly this set of sources counts."""

    sources: tuple[str, ...]
    quantities: int
    """Number of (module, operator kind, metric) combinations; those of a single source are not compared."""


@dataclass(frozen=True, slots=True)
class Judges:
    """Result of comparing the dynamic source with torch's FLOP formulas at the dispatcher, the second judge."""

    agreed: int
    """Number of (stage, invocation, module, operator) combinations with equal FLOPs in both."""
    flops: int
    """FLOPs summed over the combinations that agree."""
    alone: tuple[str, ...]
    """Work that only costproof's operator rules count, one clause each."""
    operators: tuple[str, ...] = ()
    """Operators that the second judge counted, by their names at the dispatcher."""


@dataclass(frozen=True, slots=True)
class CounterFinding:
    """The result of a third-party counter compared with costproof's count, for one call of a stage."""

    counter: str
    stage: str
    invocation: str
    value: int | None
    """The counter's result in its own unit; ``None`` if the counter failed."""
    normalised: int | None
    """The counter's result in FLOPs, 2 per multiply-accumulate."""
    truth: int | None
    """Costproof's FLOPs for the same forward pass; ``None`` if any summand is unknown."""
    delta: int | None
    """``value - truth``."""
    causes: tuple[Cause, ...]
    residual: int | None
    covered: int | None
    """FLOPs of the truth that the counter also counts."""
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
    """A third-party counter, and the version that ran."""

    info: CounterInfo
    version: str | None
    """Installed version; ``None`` if the counter is not installed and was skipped."""


@dataclass(frozen=True, slots=True)
class CounterComparison:
    """Third-party counters compared with costproof's count, without effect on the verdict."""

    tools: tuple[CounterTool, ...]
    totals: tuple[CounterFinding, ...]
    """One finding per counter, summed over all invocations that were counted."""
    findings: tuple[CounterFinding, ...]
    """One finding per counter and invocation, grouped by counter."""
    checked: tuple[str, ...] = ()
    """One sentence per comparison of costproof's count with the closed formulas, with its result."""
    unknown: tuple[str, ...] = ()
    """Invocations that are not compared since costproof's count is unknown, with the reason."""

    @property
    def incomplete(self) -> tuple[str, ...]:
        """The failures of counters, one sentence each; empty if every counter that ran was compared."""
        failed = tuple(f"the counter {f.counter} failed: {f.error}" for f in self.totals if f.error is not None)
        return (*(f"the truth is unknown: {why}" for why in self.unknown), *failed)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes that reports print below the tables."""
        return (*(f"The truth is unknown: {why}" for why in self.unknown), *self.checked)

    def tool(self, name: str) -> CounterTool:
        """Return the counter of that name."""
        return next(t for t in self.tools if t.info.name == name)


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """The discrepancy file: all findings of one capture, and the verdict."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    verdict: ComparisonVerdict
    findings: tuple[Finding, ...]
    """All findings: first totals, then stages, then modules, each in the order of the model."""
    coverage: dict[str, SourceCoverage]
    incomplete: tuple[str, ...] = ()
    """Reasons for the verdict ``incomplete``, one sentence each; empty for any other verdict."""
    judges: Judges | None = None
    """The comparison with torch's FLOP formulas, the second judge; ``None`` in older files."""
    counters: CounterComparison | None = None
    """The comparison with third-party counters, if the capture has any."""
    given_by: tuple[GivenBy, ...] = ()
    """Number of quantities by the set of sources that count them, largest sets first; empty in older files."""

    def __repr__(self) -> str:
        """Return a summary in one line, because there may be thousands of findings."""
        of = f"{self.target.name} at {self.workload.name}"
        return f"Discrepancy({of}: {self.verdict}, {plural(len(self.findings), 'finding')})"

    def select(self, *, level: Level | None = None, status: FindingStatus | None = None) -> tuple[Finding, ...]:
        """Return the findings with this level and status; ``None`` accepts any."""
        return tuple(
            f for f in self.findings if (level is None or f.level == level) and (status is None or f.status == status)
        )

    def finding(self, finding_id: str) -> Finding:
        """Return the finding with this id.

        Raises:
            BadInput: there is none.
        """
        known = {f.id: f for f in self.findings}
        if finding_id not in known:
            raise BadInput("no such finding", where=finding_id, fix=did_you_mean(finding_id, known))
        return known[finding_id]


DISCREPANCY: Final = FileKind(name="costproof/discrepancy", version=(2, 6), type=Discrepancy)
