"""The data of ``static_compute.json``: what each stage costs, with every source beside the headline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from costproof.ledger.capture import Capture, SymbolDoc
from costproof.ledger.conventions import NOT_COUNTED, Conventions
from costproof.ledger.errors import Bug
from costproof.ledger.metrics import METRICS, STAGE_WIDE, Metric
from costproof.ledger.node import Ledger, exact_sum
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, TensorSpec, Workload
from costproof.reports.formulas import FormulaText, invocation_formula, stage_formula
from costproof.reports.values import Quantity, added, executed, gives, known, ledgers, quantity, value, whole

FORMULA_METRICS: Final[tuple[Metric, ...]] = ("params", "flops", "vector_flops", "output_bytes", "kv_cache_bytes")
"""Metrics whose formula stands in the report; ``explain`` gives the others."""


@dataclass(frozen=True, slots=True)
class InvocationCompute:
    """One call of a stage."""

    id: str
    calls: int
    flops: int | None
    vector_flops: int | None
    weight_read_bytes: int | None
    input_bytes: int | None
    output_bytes: int | None
    kv_cache_bytes: int | None
    inputs: tuple[TensorSpec, ...]
    symbols: dict[str, int]
    formulas: dict[str, FormulaText]


@dataclass(frozen=True, slots=True)
class StageCompute:
    """One stage over all its invocations. ``None`` is unknown or disputed, never zero."""

    id: str
    params: int | None
    params_executed: int | None
    """Of those, the elements of modules that this run reads."""
    params_active: int | None
    """Of those, the elements that one token passes: routed experts count top-k of E."""
    flops: int | None
    macs: int | None
    """Half the FLOPs."""
    vector_flops: int | None
    flops_by_kind: dict[str, int | None]
    weight_bytes: int | None
    weight_read_bytes: int | None
    input_bytes: int | None
    output_bytes: int | None
    activation_bytes: int | None
    """The same as ``output_bytes``."""
    io_bytes: int | None
    """``weight_read_bytes + input_bytes + output_bytes``."""
    kv_cache_bytes: int | None
    at_least: dict[str, int]
    """For a quantity that is null because an operator has no rule: the part that is known."""
    invocations: tuple[InvocationCompute, ...]
    sources: dict[str, dict[str, int | None]]
    formulas: dict[str, FormulaText]


@dataclass(frozen=True, slots=True)
class NotCounted:
    """Something that no number here contains."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class StaticCompute:
    """``static_compute.json``."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    verdict: str
    stages: tuple[StageCompute, ...]
    totals: dict[str, int | None]
    """Sums over the stages; parameters of a module that works in two stages count once."""
    totals_at_least: dict[str, int]
    sources: dict[str, dict[str, int | None]]
    """Totals of each source by itself."""
    not_counted: tuple[NotCounted, ...]
    symbols: dict[str, SymbolDoc] = field(default_factory=dict)


STATIC_COMPUTE: Final = FileKind(name="costproof/static_compute", version=(1, 0), type=StaticCompute)

_STAGE_WIDE: Final[tuple[Metric, ...]] = ("params", "params_active", "weight_bytes")
_SUMMED: Final = (
    "flops",
    "vector_flops",
    "weight_read_bytes",
    "input_bytes",
    "output_bytes",
    "io_bytes",
    "kv_cache_bytes",
)


def static_compute(capture: Capture, verdict: str, *, formulas: bool = True) -> StaticCompute:
    """What the capture's sources say, stage by stage.

    Args:
        verdict: of the comparison: ``exact``, ``explained``, ``unexplained`` or ``incomplete``.
        formulas: whether to bring the formulas into a form for reading, which takes most of the time.

    Raises:
        Bug: rows do not sum to their total.
    """
    settled = verdict in ("exact", "explained")
    stages = tuple(_stage(capture, stage, settled, formulas) for stage in capture.target.stages)
    totals: dict[str, int | None] = {}
    at_least: dict[str, int] = {}
    for name in _STAGE_WIDE:
        _note(name, quantity(capture, name, settled=settled), totals, at_least)
    for summed in _SUMMED:
        parts = [Quantity(getattr(s, summed), s.at_least.get(summed)) for s in stages]
        _note(summed, added(*parts), totals, at_least)
    first = next(iter(ledgers(capture)), None)
    totals["params_executed"] = None if first is None else _executed_total(first)
    totals["macs"] = _half(totals["flops"])
    totals["activation_bytes"] = totals["output_bytes"]
    result = StaticCompute(
        conventions=capture.conventions,
        target=capture.target,
        workload=capture.workload,
        environment=capture.environment,
        verdict=verdict,
        stages=stages,
        totals=totals,
        totals_at_least=at_least,
        sources={
            x.source: {m: value(x, m) for m in METRICS if gives(x, m) and whole(capture, x)} for x in capture.ledgers
        },
        not_counted=tuple(NotCounted(what, why) for what, why in NOT_COUNTED),
        symbols=_used_symbols(capture, stages),
    )
    check_sums(result)
    return result


def check_sums(result: StaticCompute) -> None:
    """Rows must sum to their total.

    Raises:
        Bug: they do not.
    """
    for stage in result.stages:
        pairs: list[tuple[str, int | None, list[int | None]]] = [
            ("flops by kind", stage.flops, list(stage.flops_by_kind.values())),
            ("flops by invocation", stage.flops, [i.flops for i in stage.invocations]),
        ]
        for name, total, rows in pairs:
            if total is None or None in rows:
                continue
            if sum(r or 0 for r in rows) != total:
                raise Bug(f"{name} do not sum to the stage's total", where=stage.id, expected=total, got=rows)


def _stage(capture: Capture, stage: str, settled: bool, formulas: bool) -> StageCompute:
    found: dict[str, Quantity] = {m: quantity(capture, m, stage, settled=settled) for m in METRICS}
    found["io_bytes"] = added(found["weight_read_bytes"], found["input_bytes"], found["output_bytes"])
    first = next((x for x in ledgers(capture) if stage in x.stages), None)
    calls = [i for i in capture.invocations if i.stage == stage]
    analytic = capture.ledger("analytic") if formulas else None
    config = capture.target.symbols
    return StageCompute(
        id=stage,
        params=found["params"].value,
        params_executed=None if first is None else _executed(first, stage),
        params_active=found["params_active"].value,
        flops=found["flops"].value,
        macs=_half(found["flops"].value),
        vector_flops=found["vector_flops"].value,
        flops_by_kind={} if first is None else _by_kind(first, stage, known=found["flops"].value is not None),
        weight_bytes=found["weight_bytes"].value,
        weight_read_bytes=found["weight_read_bytes"].value,
        input_bytes=found["input_bytes"].value,
        output_bytes=found["output_bytes"].value,
        activation_bytes=found["output_bytes"].value,
        io_bytes=found["io_bytes"].value,
        kv_cache_bytes=found["kv_cache_bytes"].value,
        at_least={m: q.at_least for m, q in found.items() if q.at_least is not None},
        invocations=tuple(
            InvocationCompute(
                id=call.id,
                calls=call.calls,
                flops=_in(capture, "flops", stage, call.id, settled),
                vector_flops=_in(capture, "vector_flops", stage, call.id, settled),
                weight_read_bytes=_in(capture, "weight_read_bytes", stage, call.id, settled),
                input_bytes=_in(capture, "input_bytes", stage, call.id, settled),
                output_bytes=_in(capture, "output_bytes", stage, call.id, settled),
                kv_cache_bytes=_in(capture, "kv_cache_bytes", stage, call.id, settled),
                inputs=call.inputs,
                symbols=call.symbols,
                formulas={
                    m: f
                    for m in FORMULA_METRICS
                    if m not in STAGE_WIDE
                    and analytic is not None
                    and (f := invocation_formula(analytic, m, stage, call.id, config, capture.symbols)) is not None
                },
            )
            for call in calls
        ),
        sources={x.source: _said(x, stage) for x in capture.ledgers if stage in x.stages},
        formulas={
            m: f
            for m in FORMULA_METRICS
            if analytic is not None and (f := stage_formula(analytic, m, stage, config, capture.symbols)) is not None
        },
    )


def _by_kind(ledger: Ledger, stage: str, *, known: bool) -> dict[str, int | None]:
    """FLOPs per operator kind in the words of one source; all unknown where their sum is."""
    kinds: dict[str, int | None] = {}
    for n in ledger.nodes:
        flops = n.cost("flops")
        if n.stage == stage and flops != 0:
            kinds[n.kind] = exact_sum((kinds.get(n.kind, 0), flops)) if known else None
    return dict(sorted(kinds.items()))


def _said(ledger: Ledger, stage: str) -> dict[str, int | None]:
    return {m: value(ledger, m, stage) for m in METRICS if gives(ledger, m, stage)}


def _in(capture: Capture, metric: Metric, stage: str, call: str, settled: bool) -> int | None:
    return quantity(capture, metric, stage, lambda n: n.invocation == call, settled=settled).value


def _executed(ledger: Ledger, stage: str) -> int:
    runs = executed(ledger, stage)
    return known(ledger, "params", stage, lambda n: n.module in runs)


def _executed_total(ledger: Ledger) -> int:
    runs = {(s, m) for s in ledger.stages for m in executed(ledger, s)}
    return known(ledger, "params", None, lambda n: (n.stage, n.module) in runs)


def _half(flops: int | None) -> int | None:
    return flops // 2 if flops is not None and flops % 2 == 0 else None


def _note(name: str, found: Quantity, totals: dict[str, int | None], at_least: dict[str, int]) -> None:
    totals[name] = found.value
    if found.at_least is not None:
        at_least[name] = found.at_least


def _used_symbols(capture: Capture, stages: tuple[StageCompute, ...]) -> dict[str, SymbolDoc]:
    used = {name for s in stages for i in s.invocations for f in i.formulas.values() for name in f.symbols}
    return {name: doc for name, doc in sorted(capture.symbols.items()) if name in used}
