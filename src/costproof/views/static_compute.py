"""Compute the content of ``static_compute.json``: the cost of each stage, as headline numbers and by source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from costproof.ledger.capture import Capture, Padding, SymbolDoc, WholeModel
from costproof.ledger.errors import Bug, Recount, check_recounts
from costproof.ledger.mesh import Collectives, Dispatch, Duplicate, Mesh, RankCosts
from costproof.ledger.metrics import EVERY_METRIC, METRICS, STAGE_WIDE, Conventions, Metric
from costproof.ledger.node import Ledger, exact_sum
from costproof.ledger.peaks import by_stage
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import Invocation, TargetInfo, TensorSpec, Workload
from costproof.views.formulas import FormulaText, nodes_formula, stage_formula
from costproof.views.quantities import (
    METRICS_SHOWN,
    PER_CALL,
    SHOWN,
    Costs,
    Flat,
    KnownAmount,
    Where,
    add_known,
    executed,
    known,
    ledgers,
    provides,
    quantity,
    value,
    whole,
    with_derived,
)

FORMULA_METRICS: Final[tuple[Metric, ...]] = tuple(m for m, i in METRICS.items() if i.formula)


@dataclass(frozen=True, slots=True)
class InvocationCompute(Flat):
    """Costs of one call of a stage."""

    id: str
    calls: int
    costs: Costs
    """Values of the metrics that depend on the call."""
    inputs: tuple[TensorSpec, ...]
    symbols: dict[str, int]
    formulas: dict[str, FormulaText]

    @classmethod
    def quantities(cls) -> tuple[str, ...]:
        """Return the metrics that depend on the workload and not only on the model."""
        return PER_CALL


@dataclass(frozen=True, slots=True)
class StageCompute(Flat):
    """Costs of one stage over all its invocations; ``None`` means unknown or disputed, never zero."""

    id: str
    costs: Costs
    """Values of all quantities that a report shows."""
    graph_peak_bytes: int | None
    """Peak of live activations in the graph, in bytes; ``None`` also if it was not requested."""
    eager_peak_bytes: int | None
    """Peak of live activations of the eager module, in bytes."""
    flops_by_kind: Costs
    at_least: dict[str, int]
    """Lower bound of a quantity that is null since an operator has no rule: the sum of its known summands."""
    invocations: tuple[InvocationCompute, ...]
    sources: dict[str, Costs]
    """Costs by source, including metrics in another tool's convention if requested."""
    formulas: dict[str, FormulaText]

    @classmethod
    def quantities(cls) -> tuple[str, ...]:
        """Return all metrics and derived quantities that a report shows."""
        return tuple(SHOWN)


@dataclass(frozen=True, slots=True)
class NotCounted:
    """Work or memory that no number of the report includes, with the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class StaticCompute:
    """Content of ``static_compute.json``: the cost of every stage."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    verdict: str
    stages: tuple[StageCompute, ...]
    totals: Costs
    """Sums over the stages; parameters of a module that runs in two stages count once."""
    totals_at_least: dict[str, int]
    sources: dict[str, Costs]
    """Totals by source."""
    not_counted: tuple[NotCounted, ...]
    symbols: dict[str, SymbolDoc] = field(default_factory=dict)
    whole: WholeModel | None = None
    """Costs of all layers, if only the model's first layers were counted."""
    formulas_of: str = ""
    """Origin of the formulas: ``analytic``, or ``derived`` from the exported graph; empty without formulas."""

    parallel: Mesh | None = None
    """Number of devices along each mesh axis, if there are several; all costs above are of one rank."""
    rank: int = 0
    ranks: tuple[RankCosts, ...] = ()
    """Costs of all ranks by the formulas, one entry for ranks with equal costs."""
    collectives: tuple[Collectives, ...] = ()
    """Collectives of the counted rank by the formulas, one entry for equal collectives."""
    duplicates: tuple[Duplicate, ...] = ()
    """Work and memory that several ranks duplicate; without these, the sums over ranks equal one device's costs."""
    summed_metrics: tuple[str, ...] = ()
    """Metrics that duplicates name; sums of other metrics over ranks are not split into one device's and copies."""
    dispatches: tuple[Dispatch, ...] = ()
    """Methods of sending tokens to experts of other ranks, with the bytes and FLOPs of the counted rank."""
    attributes_bytes: int = 0
    """Bytes of tensors that are plain attributes of modules, which no cost above includes."""
    padding: Padding | None = None
    """Memory that only padding to blocks takes, by the formulas; no cost above includes it."""

    @property
    def one_stage(self) -> bool:
        """Return whether there is a single stage, so that its sums equal the totals."""
        totals = (self.totals, self.totals_at_least, self.sources)
        return [(s.costs, s.at_least, s.sources) for s in self.stages] == [totals]

    def __repr__(self) -> str:
        """Return one line; ``frame`` has the table."""
        return f"StaticCompute({self.target.name} at {self.workload.name}: {plural(len(self.stages), 'stage')})"


STATIC_COMPUTE: Final = FileKind(
    name="costproof/static_compute", version=(3, 6), type=StaticCompute,
    left_out=("parallel", "rank", "ranks", "collectives", "duplicates", "summed_metrics", "dispatches",
              "attributes_bytes", "padding"),
)  # fmt: skip


def static_compute(capture: Capture, verdict: str, *, formulas: bool = True) -> StaticCompute:
    """Compute the cost of each stage from the sources of a capture.

    Args:
        verdict: of the comparison: ``exact``, ``explained``, ``unexplained`` or ``incomplete``.
        formulas: whether to bring the formulas into a form for reading, which takes most of the time.

    Raises:
        Bug: rows do not sum to their total.
    """
    settled = verdict in ("exact", "explained")
    closed = _closed(capture) if formulas else None
    stages = tuple(_stage(capture, stage, settled, closed) for stage in capture.target.stages)
    totals = {
        m: quantity(capture, m, settled=settled)
        if METRICS[m].stage_wide
        else add_known(*(KnownAmount(s.costs[m], s.at_least.get(m)) for s in stages))
        for m in METRICS_SHOWN
    }
    first = next(iter(ledgers(capture)), None)
    every = with_derived(totals, None if first is None else _executed(first, first.stages))
    used = {name for s in stages for i in s.invocations for f in i.formulas.values() for name in f.symbols}
    result = StaticCompute(
        conventions=capture.conventions,
        target=capture.target,
        workload=capture.workload,
        environment=capture.environment,
        verdict=verdict,
        stages=stages,
        totals={name: every[name].value for name in SHOWN},
        totals_at_least={name: q.at_least for name, q in every.items() if q.at_least is not None},
        sources={
            x.source: {m: value(x, m) for m in EVERY_METRIC if provides(x, m) and whole(capture, x)}
            for x in capture.ledgers
        },
        not_counted=tuple(NotCounted(what, why) for what, why in capture.not_counted),
        symbols={name: doc for name, doc in sorted(capture.symbols.items()) if name in used},
        whole=capture.whole,
        formulas_of="" if closed is None else "analytic" if closed.source == "analytic" else "derived",
        **_of_mesh(capture),
        attributes_bytes=max((ledger.attributes_bytes for ledger in capture.ledgers), default=0),
        padding=capture.padding,
    )
    check_sums(result)
    if (found := capture.parallel) is not None:
        named = {metric for costs in found.one_device.values() for metric in costs}
        both = len(named & {*result.summed_metrics}), len(named)
        check_recounts([Recount("", "$.summed_metrics", "metrics", *both)])
    return result


def _of_mesh(capture: Capture) -> dict[str, Any]:
    found = capture.parallel
    if found is None:
        return {}
    names = ("rank", "ranks", "collectives", "duplicates", "dispatches")
    return {"parallel": found.mesh, "summed_metrics": found.summed, **{name: getattr(found, name) for name in names}}


def check_sums(result: StaticCompute) -> None:
    """Check that rows sum to their total.

    Raises:
        Bug: they do not.
    """
    for stage in result.stages:
        total = stage.costs["flops"]
        by_call = [call.costs["flops"] for call in stage.invocations]
        for name, rows in (("kind", [*stage.flops_by_kind.values()]), ("invocation", by_call)):
            if None not in (total, exact_sum(rows)) and exact_sum(rows) != total:
                raise Bug(f"flops by {name} do not sum to the stage's total", where=stage.id, expected=total, got=rows)
        sent = [c.sent_bytes for c in result.collectives if c.stage == stage.id]
        given = next((r.stages[stage.id] for r in result.ranks if result.rank in r.ranks), {}).get("comm_bytes")
        if given is not None and sum(sent) != given:
            raise Bug(
                "collectives do not sum to the bytes that the rank sends", where=stage.id, expected=given, got=sent
            )


def _closed(capture: Capture) -> Ledger | None:
    """Return the source with closed formulas: ``analytic``, or else ``static``."""
    found = (capture.by_source.get(source) for source in ("analytic", "static"))
    return next((x for x in found if x is not None and any(n.exprs for n in x.nodes)), None)


def _stage(capture: Capture, stage: str, settled: bool, closed: Ledger | None) -> StageCompute:
    first = next((x for x in ledgers(capture) if stage in x.stages), None)
    calls = [i for i in capture.invocations if i.stage == stage]
    config = capture.target.symbols
    peaks = next((p for p in by_stage(capture.peaks) if p.stage == stage), None)
    found = with_derived(
        {m: quantity(capture, m, stage, settled=settled) for m in METRICS},
        None if first is None else _executed(first, [stage]),
    )
    return StageCompute(
        id=stage,
        costs={name: found[name].value for name in SHOWN},
        graph_peak_bytes=None if peaks is None else peaks.graph_peak_bytes,
        eager_peak_bytes=None if peaks is None else peaks.eager_peak_bytes,
        flops_by_kind={} if first is None else _by_kind(first, stage, known=found["flops"].value is not None),
        at_least={m: q.at_least for m, q in found.items() if q.at_least is not None},
        invocations=tuple(
            InvocationCompute(
                id=call.id,
                calls=call.calls,
                costs={m: quantity(capture, m, stage, _of(call), settled=settled).value for m in PER_CALL},
                inputs=call.inputs,
                symbols=call.symbols,
                formulas={
                    m: f
                    for m in FORMULA_METRICS
                    if m not in STAGE_WIDE
                    and closed is not None
                    and (f := nodes_formula(filter(_of(call), closed.nodes), m, config, capture.symbols)) is not None
                },
            )
            for call in calls
        ),
        sources={
            x.source: {m: value(x, m, stage) for m in EVERY_METRIC if provides(x, m, stage)}
            for x in capture.ledgers
            if stage in x.stages
        },
        formulas={
            m: f
            for m in FORMULA_METRICS
            if closed is not None and (f := stage_formula(closed, m, stage, config, capture.symbols)) is not None
        },
    )


def _by_kind(ledger: Ledger, stage: str, *, known: bool) -> dict[str, int | None]:
    """Return a source's FLOPs by operator kind; ``None`` for all kinds if their sum is unknown."""
    kinds: dict[str, int | None] = {}
    for n in ledger.nodes:
        flops = n.cost("flops")
        if n.stage == stage and flops != 0:
            kinds[n.kind] = exact_sum((kinds.get(n.kind, 0), flops)) if known else None
    return dict(sorted(kinds.items()))


def _of(call: Invocation) -> Where:
    return lambda n: (n.stage, n.invocation) == (call.stage, call.id)


def _executed(ledger: Ledger, stages: Sequence[str]) -> int:
    runs = {(s, m) for s in stages for m in executed(ledger, s)}
    return known(ledger, "params", None, lambda n: (n.stage, n.module) in runs)
