"""Convert results to pandas DataFrames, importing pandas only on use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import singledispatch
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from costproof.claims.types import ClaimsReport
from costproof.compare.align import order
from costproof.compare.diff.types import Diff
from costproof.compare.findings import Discrepancy
from costproof.compare.gate.types import Gate
from costproof.compare.patterns import ROOT
from costproof.compare.proof.certificate import Certificate
from costproof.estimate.hardware import Device, FigureQuote
from costproof.estimate.measured import Measurement
from costproof.estimate.memory import Fits
from costproof.estimate.roofline import Roofline, WorkBound
from costproof.ledger.callgraph import CallGraph, OperatorListing, PlainAt, ValueAt
from costproof.ledger.capture import Capture
from costproof.ledger.counter import SOURCE
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import EVERY_METRIC, Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum, total
from costproof.ledger.peaks import Peaks
from costproof.ledger.workload import FLOAT_BYTES
from costproof.views.counters import CounterReport
from costproof.views.explanation import Explanation
from costproof.views.quantities import SHOWN
from costproof.views.results import Results
from costproof.views.static_compute import StaticCompute

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class Tabled(Protocol):
    """Protocol of results that can list the rows of their table."""

    def table_rows(self) -> Sequence[object]:
        """Return the rows of the table: dataclasses, mappings, or texts."""


@runtime_checkable
class Framed(Protocol):
    """Protocol of results that build their own DataFrame."""

    def frame(self) -> pd.DataFrame:
        """Return the result as a DataFrame."""


def frame(value: object) -> pd.DataFrame:
    """Return the DataFrame of a result; integers stay exact (object or Int64 columns, never float).

    ====================================  ===========================================================
    value                                 a row for each
    ====================================  ===========================================================
    ``Capture``, ``Ledger``               cost node, of each source
    ``Report``, ``StaticCompute``         stage
    ``Discrepancy``                       finding
    ``CallGraph``                         module
    ``Diff``                              sum and changed row
    ``Gate``                              check of a limit
    ``Explanation``, ``Derivation``       formula
    ``ClaimsReport``                      claim
    ``Certificate``, ``Verification``     claim that is proved
    ``CounterReport``                     counter on a call of a stage; and number of your own
    ``Roofline``                          stage, the whole run and part
    ``Fits``                              stage, and the whole run
    ``Peaks``                             call
    ``StoredCheckpoint``                  tensor, equal ones of all layers once
    ``Measurement``                       call of a stage
    ``Device``                            peak and other figure
    ``Machine``                           package, source, extra and plug-in
    ``Sweep``                             point
    listings of operators                 operator
    collections of named things           thing, such as a rule, a workload, a target, a setting
    ====================================  ===========================================================

    Times and intensities are exact rational numbers as text (``fractions.Fraction`` reads them).

    Raises:
        BadInput: the value has no table.
    """
    import pandas as pd

    if isinstance(value, Framed):
        return value.frame()
    rows = _rows(value)
    columns = dict.fromkeys(name for row in rows for name in row)
    table = pd.DataFrame([{name: row.get(name) for name in columns} for row in rows], dtype=object)
    whole = [c for c in table.columns if table[c].map(lambda v: v is None or type(v) is int).all()]
    for column in whole:
        # Int64 distinguishes "unknown" from 0; larger values stay Python integers.
        if table[column].map(lambda v: v is None or -(2**63) <= v < 2**63).all():
            table[column] = table[column].astype("Int64")
    return table


@singledispatch
def _rows(value: object) -> list[dict[str, Any]]:
    if isinstance(value, Tabled):
        value = value.table_rows()
    if isinstance(value, Mapping) and value and all(isinstance(v, str) or is_dataclass(v) for v in value.values()):
        return [{"name": name, **_plain(item, "what" if isinstance(item, str) else "")} for name, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if any(isinstance(item, OperatorListing) for item in value):
            places = ("stage", "invocation", "part")
            return [_pick(listing, *places) | _plain(line) for listing in value for line in listing.lines]
        if all(isinstance(item, str | Mapping) or is_dataclass(item) for item in value):
            return [_plain(item) for item in value]
    expected = "a result that help(costproof.frame) lists; a schema, a picture or a request has no table"
    raise BadInput("this result has no table", expected=expected, got=type(value).__name__)


def _plain(item: object, prefix: str = "") -> dict[str, Any]:
    """Return a row in plain types: nested dataclasses as columns, lists of strings joined, functions omitted."""
    if isinstance(item, str):
        return {prefix or "name": item}
    if isinstance(item, Mapping):
        return dict(item)
    assert is_dataclass(item)
    row: dict[str, Any] = {}
    for f in fields(item):
        value, name = getattr(item, f.name), f"{prefix}_{f.name}" if prefix else f.name
        if is_dataclass(value):
            row |= _plain(value, name)
        elif isinstance(value, tuple) and all(isinstance(v, str) for v in value):
            row[name] = "; ".join(value)
        elif not callable(value):
            row[name] = value
    return row


def _pick(item: object, *names: str) -> dict[str, Any]:
    """Return the named attributes of an object, by name."""
    return {name: getattr(item, name) for name in names}


@_rows.register
def _all_nodes(capture: Capture) -> list[dict[str, Any]]:
    return [{"source": x.source, **row} for x in capture.ledgers for row in _nodes(x)]


@_rows.register
def _nodes(ledger: Ledger) -> list[dict[str, Any]]:
    metrics: dict[str, int | None] = {m: None for m in EVERY_METRIC if m in ledger.metrics}
    return [
        {
            **_pick(n, "stage", "invocation", "module", "kind", "owner"),
            **(metrics | {m: v for m, v in n.costs.items() if m in metrics}),
        }
        for n in ledger.nodes
    ]


@_rows.register
def finding_rows(d: Discrepancy) -> list[dict[str, Any]]:
    """Return one row per finding: identity, a column per source, delta, causes, residual."""
    sources = order(d.coverage)
    return [
        {
            **_pick(f, "id", "level", "stage", "invocation", "module", "kind", "metric", "status", "count"),
            **{s: f.values.get(s) for s in sources},
            **_pick(f, "reference", "delta", "residual"),
            "causes": "; ".join(f"{c.kind} {c.amount:+d}" if c.amount else c.kind for c in f.causes),
            "error_expression": f.error_expression,
        }
        for f in d.findings
    ]


@_rows.register
def _stages(static: StaticCompute) -> list[dict[str, Any]]:
    return [{"stage": s.id, **{name: s.costs[name] for name, q in SHOWN.items() if q.title}} for s in static.stages]


@_rows.register
def _parts(found: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "call": call.id,
            **_pick(part, "modules", "count", "kind"),
            "formula_of": part.owner,
            "formula": part.formula.expression,
            **_pick(part, "each", "total"),
        }
        for call in found.calls
        for part in call.parts
    ]


DIFF_COLUMNS: Final = (
    "source", "level", "stage", "part", "kind", "metric", "base", "head", "delta", "change", "moved",
    "base_counted", "head_counted",
)  # fmt: skip


@_rows.register
def diff_rows(found: Diff) -> list[dict[str, Any]]:
    """Return a row for each total, stage and changed cost of every source; totals and stages also if unchanged.

    Each row has what the numbers of both sides leave out, with the notes of their sources.
    """
    rows: list[dict[str, Any]] = []
    for source, part in found.by_source.items():
        sums = (("total", "", "", part.totals), *(("stage", s.id, s.change, s.totals) for s in part.stages))
        for level, stage, change, totals in sums:
            for metric, q in totals.items():
                numbers = {"base": q.base, "head": q.head, "delta": q.delta}
                rows.append({"source": source, "level": level, "stage": stage, "metric": metric, **numbers})
                rows[-1]["change"] = "same" if q.delta == 0 else change or "changed"
        for r in part.rows:
            rows.append({"source": source, "level": "row", **_pick(r, *DIFF_COLUMNS[2:-2])})
    base, head = ("; ".join((side.counted, *side.notes)) for side in (found.base, found.head))
    said = {"base_counted": base, "head_counted": head}
    return [{name: (row | said).get(name, "") for name in DIFF_COLUMNS} for row in rows]


@_rows.register
def _stages_of(report: Results) -> list[dict[str, Any]]:
    return _stages(report.figures)


@_rows.register
def _checks(gate: Gate) -> list[dict[str, Any]]:
    return [_plain(check) for check in gate.checks]


@_rows.register
def _claims(report: ClaimsReport) -> list[dict[str, Any]]:
    plain = (
        "id", "stage", "invocation", "module", "metric", "claimed", "status", "low", "high", "truth", "delta",
        "residual", "residual_expression", "note",
    )  # fmt: skip
    return [
        {
            **_pick(j, *plain),
            "causes": "; ".join(f"{s.cause} {s.amount:+d}" for e in j.explanations[:1] for s in e.steps),
        }
        for j in report.judgements
    ]


@_rows.register
def _proved(certificate: Certificate) -> list[dict[str, Any]]:
    return [_plain(claim) for claim in certificate.claims]


@_rows.register
def _counters(report: CounterReport) -> list[dict[str, Any]]:
    plain = ("counter", "stage", "invocation", "value", "normalised", "truth", "delta", "residual", "covered", "error")
    tools = [
        {
            **_pick(f, *plain),
            "causes": "; ".join(f"{c.kind} {c.amount:+d}" if c.amount else c.kind for c in f.causes),
            "verdict": f.verdict,
        }
        for f in report.compared.findings
    ]
    own = [
        {
            **dict.fromkeys(plain),
            "counter": o.name,
            **_pick(o.judgement, "stage", "invocation", "truth", "delta", "residual"),
            "causes": "; ".join(f"{s.cause} {s.amount:+d}" for e in o.judgement.explanations[:1] for s in e.steps),
            "verdict": o.judgement.status,
        }
        for o in report.own
    ]
    return [*tools, *own]


OTHERS: Final = ("floor_s", "full_s", "unfused_s")


@_rows.register
def _roofline(found: Roofline) -> list[dict[str, Any]]:
    def row(level: str, stage: str, part: str, bound: WorkBound) -> dict[str, Any]:
        return {"level": level, "stage": stage, "part": part, **_plain(bound)}

    stages = [("stage", s.id, s) for s in found.stages] + [("run", "", found.run)]
    return [
        *(
            row(level, stage, "", s.modules)
            | {
                name: None if bound is None else bound.seconds
                for name, bound in zip(OTHERS, (s.floor, s.full, s.unfused), strict=True)
            }
            for level, stage, s in stages
        ),
        *(row("part", p.stage, p.part, p.at_roof) | dict.fromkeys(OTHERS) for p in found.parts),
    ]


@_rows.register
def _fits(found: Fits) -> list[dict[str, Any]]:
    run = {
        "stage": "",
        "weights_bytes": found.weights_bytes,
        **{
            name: getattr(found, name)
            for name in ("cache_bytes", "live_bytes", "activations_bytes", "peak_bytes", "peaks_bytes")
        },
        "memory_bytes": found.memory_bytes,
    }
    stages = [{"stage": s.id, **{k: v for k, v in _plain(s).items() if k != "id"}} for s in found.stages]
    return [*({**dict.fromkeys(run), **s} for s in stages), run]


@_rows.register
def _peaks(found: Peaks) -> list[dict[str, Any]]:
    return [
        {
            **_pick(c, "stage", "invocation", "part"),
            "graph_peak_bytes": None if c.graph is None else c.graph.bytes,
            "eager_peak_bytes": None if c.eager is None else c.eager.bytes,
            **_pick(c, "gap_bytes", "residual", "form", "gathered_bytes"),
            "notes": "; ".join(c.notes),
        }
        for c in found.calls
    ]


@_rows.register
def _measured(found: Measurement) -> list[dict[str, Any]]:
    return [
        {
            **_pick(r, "run", "stage", "invocation"),
            "flops": r.roof.flops,
            "bytes": r.roof.bytes,
            "floor_s": r.floor.seconds,
            "roof_s": r.roof.seconds,
            "alone_ns": r.replay,
            "host_ns": None if r.clocks is None else r.clocks.host,
            "device_ns": None if r.clocks is None else r.clocks.device,
            "predicted_ns": r.predicted,
            "measured_ns": None if r.measured is None else r.measured.median,
            "graph_ns": None if r.graph is None or r.graph.time is None else r.graph.time.median,
            "compiled_ns": None if r.compiled is None or r.compiled.time is None else r.compiled.time.median,
            **_pick(r, "of_peak", "of_bandwidth", "wrong"),
        }
        for r in found.rows
    ]


@_rows.register
def _figures(device: Device) -> list[dict[str, Any]]:
    none = {"dtype": "", "sparsity": "", "unit": ""}
    return [
        *(
            {"device": device.name, "figure": "peak", "value": p.flops, "dtype": p.dtype, "sparsity": p.sparsity,
             "unit": p.unit, "quotes": _quotes(p.quotes)}
            for p in device.peaks
        ),
        *(
            {"device": device.name, "figure": name, "value": f.value, **none, "quotes": _quotes(f.quotes)}
            for name, f in device.figures().items()
        ),
    ]  # fmt: skip


def _quotes(quotes: Sequence[FigureQuote]) -> str:
    return "; ".join(f"[{q.source}] {q.text}" for q in quotes)


@_rows.register
def _modules(graph: CallGraph) -> list[dict[str, Any]]:
    return [
        {
            "module": module,
            "type": graph.module_types.get(module, ""),
            "calls": calls,
            "operators": sum(graph.op_call_counts.get(module, {}).values()),
            "children": len(graph.module_children.get(module, ())),
            **_bytes("input", graph.input_metadata.get(module, ()), calls),
            **_bytes("output", graph.output_metadata.get(module, ()), calls),
        }
        for module, calls in sorted(graph.call_counts.items())
    ]


def _bytes(way: str, values: Sequence[ValueAt], calls: int) -> dict[str, int | None]:
    """Return the bytes of a module's inputs and outputs, in its first recorded call and in all calls."""
    told: dict[int, list[int | None]] = {}
    for v in values:
        told.setdefault(v.call, []).append(_size(v))
    first = exact_sum(told[min(told)]) if told else None
    every = exact_sum(size for sizes in told.values() for size in sizes) if len(told) == calls else None
    return {f"first_{way}_bytes": first, f"{way}_bytes": every}


def _size(v: ValueAt) -> int | None:
    if isinstance(v, PlainAt):
        return None if v.kind == "left out" else 0
    return prod(v.shape) * FLOAT_BYTES.get(v.dtype, 0) if v.kind == "tensor" else 0


def module_rows(capture: Capture) -> list[dict[str, Any]]:
    """Return a row for each module in the callgraph, with FLOPs and parameters of each source.

    These are of the module with everything inside it; ``(root)`` is the whole model. ``None`` is unknown.
    """
    graph = capture.callgraph
    called = {} if graph is None else {row["module"]: row for row in _modules(graph)}
    sums = {
        f"{metric}_{source}": _inside(ledger, metric)
        for metric in ("flops", "params")
        for source, ledger in capture.by_source.items()
        if metric in ledger.metrics and not source.startswith(SOURCE)
    }
    places = sorted({*called, *(m for of in sums.values() for m in of)})
    none = {"type": "", "calls": 0} if called else {}
    return [
        {"module": module, **called.get(module, none), **{name: of.get(module, 0) for name, of in sums.items()}}
        for module in places
    ]


def _inside(ledger: Ledger, metric: Metric) -> dict[str, int | None]:
    """Return a metric of each module including its submodules, over all stages, by module."""
    own: dict[str, list[CostNode]] = {}
    for node in ledger.nodes:
        own.setdefault(node.module, []).append(node)
    values: dict[str, int | None] = {module: total(nodes, metric) for module, nodes in own.items()}
    if ledger.hides(metric):
        values |= dict.fromkeys((op.module for op in ledger.unknown_ops), None)
    sums: dict[str, int | None] = {}
    for module, value in values.items():
        names = module.split(".") if module else []
        for depth in range(len(names) + 1):
            place = ".".join(names[:depth]) or ROOT
            sums[place] = exact_sum((sums.get(place, 0), value))
    return sums
