"""Define baselines: captures folded to a size that can be committed to git, as operands of diff and gate.

Equal layers become one row: a row has a stage, a part of the model (its role), an operator kind and a metric. Two
baselines are compared from their rows, so nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from costproof.ledger.capture import CAPTURE, Capture, parse_capture
from costproof.ledger.environment import FORMULAS
from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.files import read_json
from costproof.ledger.metrics import EVERY_METRIC, METRICS, OF_BOUNDS, PEAK_METRICS, STAGE_WIDE, Conventions, Metric
from costproof.ledger.node import CostNode, Ledger, bearing, exact_sum
from costproof.ledger.peaks import StagePeaks, by_stage, largest
from costproof.ledger.run import GRAPH_SOURCES
from costproof.ledger.schema import FileKind, from_data
from costproof.ledger.workload import ATTRIBUTES, ModuleKinds, TargetInfo, Workload, describe_calls, folded_path

WHOLE_STAGE: Final = "(stage)"
"""Part name of a stage that is not divided into parts."""
PEAK_SOURCE: Final = "peaks"
"""Source name of live peaks, which exports and runs on fake tensors compute together."""


class BaselineRow(NamedTuple):
    """Key of a number in a baseline: stage, part of the model, operator kind and metric."""

    stage: str
    part: str
    """Role (``text.layer.mlp.gate``); the module path with ``*`` for numbers if no source knows the role."""
    kind: str
    """Operator kind as the source names it; empty for metrics of the whole module."""
    metric: Metric

    def __str__(self) -> str:
        return f"{self.stage}/{self.part}{':' + self.kind if self.kind else ''}, {self.metric}"


RowTree = dict[str, dict[str, dict[str, dict[Metric, int | None]]]]
"""Sums over a part's modules and a stage's calls, nested by stage, part, kind and metric."""


@dataclass(frozen=True, slots=True)
class Folded:
    """The costs of one source in a baseline, summed into rows."""

    metrics: tuple[Metric, ...]
    """Metrics that the source gives; others are absent, not zero."""
    stages: tuple[str, ...]
    """Stages that the source covers."""
    rows: RowTree
    """Sums by row; ``None`` is unknown, and a missing row is 0 if the source has the metric and the stage."""
    repeated: dict[Metric, int | None] = field(default_factory=dict)
    """Excess in the rows of a stage-wide metric, since a module that runs in several stages is counted in each."""
    conventions: dict[str, str] = field(default_factory=dict)
    """Deviations of this source from the conventions of the baseline."""
    formulas: dict[str, str] = field(default_factory=dict)
    """Versions of formulas, as twelve hex digits of a hash of their nodes' expressions, by formula name."""
    uneven: tuple[str, ...] = ()
    """For a target without roles, the parts whose modules differ in cost, including submodules."""
    bounds: bool = False
    """Whether nodes have metrics for time bounds; see :class:`~costproof.ledger.node.Ledger`."""
    notes: tuple[str, ...] = ()
    """Notes of the source on its counting and on work that it omitted."""
    attributes_bytes: int = 0
    """Bytes of plain tensor attributes of modules; see :class:`~costproof.ledger.node.Ledger`."""

    def items(self) -> Iterator[tuple[BaselineRow, int | None]]:
        """Yield all rows with their numbers, in a fixed order."""
        for stage in self.stages:
            for part, kinds in sorted(self.rows.get(stage, {}).items()):
                for kind, costs in sorted(kinds.items()):
                    for metric in (m for m in EVERY_METRIC if m in costs):
                        yield BaselineRow(stage, part, kind, metric), costs[metric]

    def total(self, metric: Metric, stage: str | None = None) -> int | None:
        """Return a metric summed over all rows, or those of a stage; for peaks, the maximum.

        Returns ``None`` if a row is unknown or the source does not give the metric.
        """
        if metric not in self.metrics or (stage is not None and stage not in self.stages):
            return None
        parts = [p for s in (self.stages if stage is None else (stage,)) for p in self.rows.get(s, {}).values()]
        rows = [costs[metric] for kinds in parts for costs in kinds.values() if metric in costs]
        whole = largest(rows) if EVERY_METRIC[metric].largest else exact_sum(rows)
        twice = 0 if stage is not None else self.repeated.get(metric, 0)
        return None if whole is None or twice is None else whole - twice


@dataclass(frozen=True, slots=True)
class Baseline:
    """A target at a workload, with the costs of each source summed into rows."""

    conventions: Conventions
    target: TargetInfo
    """Description of the target, with its configuration in ``target.config``."""
    workload: Workload
    environment: dict[str, str]
    """Versions of the packages that counted; only those of formulas if no graph was counted."""
    sources: dict[str, Folded]
    calls: dict[str, str] = field(default_factory=dict)
    """Number of calls, inputs and symbol values as text, by ``stage/call``."""
    modules: ModuleKinds = field(default_factory=dict)
    """Modules by path pattern; see :attr:`~costproof.ledger.capture.Capture.modules`."""

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"Baseline({self.name}: {', '.join(self.sources)})"

    @property
    def name(self) -> str:
        """Return ``TARGET at WORKLOAD``."""
        return f"{self.target.title} at {self.workload.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of all sources, each once."""
        return tuple(dict.fromkeys(note for _, folded in sorted(self.sources.items()) for note in folded.notes))

    @property
    def attributes_bytes(self) -> int:
        """Return the bytes of tensors that are plain attributes of modules, the most of any source.

        Raises:
            Incomplete: a note tells of such tensors and no field has their bytes, as in files of earlier versions.
        """
        held = max((folded.attributes_bytes for folded in self.sources.values()), default=0)
        if not held and any(note.startswith(ATTRIBUTES) for note in self.notes):
            raise Incomplete(
                "the bytes of tensors that are attributes are not known", where=self.name,
                expected="a file with the field attributes_bytes", got="one of an earlier version",
                fix="costproof capture TARGET -o FILE counts it again",
            )  # fmt: skip
        return held


BASELINE: Final = FileKind(name="costproof/baseline", version=(3, 2), type=Baseline)


_AGAIN: Final = "costproof capture TARGET -f baseline -o FILE; make baselines writes those of the built-in targets"


def read_baseline(path: Path) -> Baseline:
    """Read a baseline, or a capture as a baseline.

    Raises:
        BadInput: the file is neither, or has an unsupported version.
    """
    return parse_baseline(read_json(path, what="baseline"), where=str(path))


def parse_baseline(data: object, *, where: str) -> Baseline:
    """Convert parsed JSON to a baseline; see :func:`read_baseline`."""
    if isinstance(data, dict) and data.get("schema") == CAPTURE.name:
        return fold_capture(parse_capture(data, where=where))
    found = from_data(data, BASELINE, where=where, make_again=_AGAIN)
    problems = [
        BadInput(f"no such {what}", where=f"$.sources.{source}", expected="one of " + ", ".join(known), got=name)
        for source, folded in found.sources.items()
        for what, names, known in (
            ("metric", {*folded.metrics, *_metrics(folded.rows)}, {**EVERY_METRIC, **OF_BOUNDS}),
            ("stage", folded.rows, folded.stages),
        )
        for name in sorted({*names} - {*known})
    ]
    problems += [
        BadInput("a cost below 0", where=f"$.sources.{source}.rows, {row}", got=value)
        for source, folded in found.sources.items()
        for row, value in folded.items()
        if value is not None and value < 0
    ]
    for source, folded in found.sources.items():
        if len({*folded.stages}) < len(folded.stages):
            problems.append(BadInput("a stage occurs twice", where=f"$.sources.{source}.stages"))
        for metric, twice in folded.repeated.items():
            rows = exact_sum(value for row, value in folded.items() if row.metric == metric)
            if metric not in STAGE_WIDE or (None not in (twice, rows) and not 0 <= (twice or 0) <= (rows or 0)):
                problems.append(
                    BadInput(
                        "the repeated amount exceeds the sum of the rows",
                        where=f"$.sources.{source}.repeated, {metric}",
                    )
                )
    if problems:
        raise Problems(f"the baseline {where} is damaged", problems, fix=_AGAIN)
    return found


def _metrics(rows: RowTree) -> set[Metric]:
    return {m for parts in rows.values() for kinds in parts.values() for costs in kinds.values() for m in costs}


def fold_capture(capture: Capture) -> Baseline:
    """Return the baseline of a capture."""
    roles = {n.module: n.role for x in capture.ledgers for n in x.nodes if n.role}
    graphs = any(x.source in GRAPH_SOURCES for x in capture.ledgers)
    return Baseline(
        conventions=capture.conventions,
        target=capture.target,
        workload=capture.workload,
        environment={k: v for k, v in capture.environment.items() if graphs or k in FORMULAS},
        sources={x.source: fold_ledger(x, roles) for x in capture.ledgers} | fold_peaks(by_stage(capture.peaks)),
        calls=describe_calls(capture.invocations),
        modules=capture.modules,
    )


def fold_peaks(stages: Sequence[StagePeaks]) -> dict[str, Folded]:
    """Return live peaks as a source with one row per stage; empty if there are no peaks."""
    rows: RowTree = {s.stage: {WHOLE_STAGE: {"": {m: getattr(s, m) for m in PEAK_METRICS}}} for s in stages}
    return {PEAK_SOURCE: Folded(tuple(PEAK_METRICS), tuple(s.stage for s in stages), rows)} if stages else {}


def fold_ledger(ledger: Ledger, roles: Mapping[str, str]) -> Folded:
    """Sum the nodes of a ledger into rows of a baseline.

    Args:
        roles: module -> role, for sources without roles.
    """

    def part(module: str) -> str:
        return roles.get(module) or folded_path(module)

    rows: RowTree = {}

    def add(stage: str, module: str, kind: str, metric: Metric, value: int | None) -> None:
        costs = rows.setdefault(stage, {}).setdefault(part(module), {}).setdefault(kind, {})
        costs[metric] = exact_sum((costs.get(metric, 0), value))

    for stage in ledger.stages:
        here = [n for n in ledger.nodes if n.stage == stage]
        for metric in (*ledger.metrics, *(OF_BOUNDS if ledger.bounds else ())):
            for node in bearing(here, metric):
                add(stage, node.module, node.kind, metric, node.cost(metric))
    for op in ledger.unknown_ops:
        # An operator without a rule makes all metrics of the workload unknown, except the calls of modules.
        for metric in (m for m in ledger.metrics if m != "calls" and m not in STAGE_WIDE):
            add(op.stage, op.module, op.op, metric, None)
    uneven = () if roles else _uneven(ledger)
    found = Folded(
        ledger.metrics, ledger.stages, rows, {}, ledger.conventions, _versions(ledger.nodes), uneven, ledger.bounds,
        ledger.notes, ledger.attributes_bytes,
    )  # fmt: skip
    for metric in (m for m in METRICS if m in STAGE_WIDE and m in ledger.metrics):
        by_stage, once = exact_sum(found.total(metric, s) for s in ledger.stages), ledger.total(metric)
        if by_stage != once:
            found.repeated[metric] = None if by_stage is None or once is None else by_stage - once
    return found


def _uneven(ledger: Ledger) -> tuple[str, ...]:
    """Return the parts of the model whose modules have unequal costs."""
    costs: dict[str, dict[str, dict[tuple[str, ...], int | None]]] = {}
    for node in ledger.nodes:
        names = node.module.split(".")
        for i in range(1, len(names) + 1):
            member = ".".join(names[:i])
            if (part := folded_path(member)) != member:
                inside = ".".join(names[i:])
                its = costs.setdefault(part, {}).setdefault(member, {})
                for metric, value in node.costs.items():
                    its[node.stage, node.invocation, inside, node.kind, metric] = value
    return tuple(sorted(p for p, members in costs.items() if len({frozenset(m.items()) for m in members.values()}) > 1))


def _versions(nodes: Iterable[CostNode]) -> dict[str, str]:
    lines: dict[str, set[str]] = {}
    for node in nodes:
        lines.setdefault(node.owner, set()).update(f"{node.kind} {m} {e}" for m, e in node.exprs.items())
    return {
        owner: sha256("\n".join(sorted(texts)).encode()).hexdigest()[:12] for owner, texts in lines.items() if texts
    }
