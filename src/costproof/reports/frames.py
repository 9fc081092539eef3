"""A DataFrame for every table. pandas is imported only here, and only when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from math import prod
from typing import TYPE_CHECKING, Any

from costproof.compare.align import order
from costproof.compare.diff.types import Diff
from costproof.compare.findings import Discrepancy
from costproof.ledger.callgraph import CallGraph, PlainAt, ValueAt
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.node import Ledger, exact_sum
from costproof.ledger.workload import FLOAT_BYTES
from costproof.reports.diff_csv import diff_rows
from costproof.reports.explain import Explanation
from costproof.reports.quantities import SHOWN
from costproof.reports.static_compute import StaticCompute

if TYPE_CHECKING:
    import pandas as pd


def frame(value: object) -> pd.DataFrame:
    """The table behind a value; integers stay exact (object or Int64 columns, never float).

    ``Capture``: one row per source and cost node. ``Ledger``: one row per cost node.
    ``Discrepancy``: one row per finding. ``StaticCompute``: one row per stage.
    ``Explanation``: one row per formula. ``CallGraph``: one row per module. ``Diff``: one row per sum and changed row.

    Raises:
        BadInput: the value has no table.
    """
    import pandas as pd

    table = pd.DataFrame(_rows(value), dtype=object)
    whole = [c for c in table.columns if table[c].map(lambda v: v is None or type(v) is int).all()]
    for column in whole:
        # Int64 keeps "unknown" apart from 0; what does not fit it stays a Python integer.
        if table[column].map(lambda v: v is None or -(2**63) <= v < 2**63).all():
            table[column] = table[column].astype("Int64")
    return table


@singledispatch
def _rows(value: object) -> list[dict[str, Any]]:
    raise BadInput(
        "this has no table",
        expected="a Capture, Ledger, Discrepancy, StaticCompute, Explanation, CallGraph or Diff",
        got=type(value).__name__,
    )


@_rows.register
def _all_nodes(capture: Capture) -> list[dict[str, Any]]:
    return [{"source": x.source, **row} for x in capture.ledgers for row in _nodes(x)]


@_rows.register
def _nodes(ledger: Ledger) -> list[dict[str, Any]]:
    metrics: dict[str, int | None] = {m: None for m in EVERY_METRIC if m in ledger.metrics}
    return [
        {
            "stage": n.stage,
            "invocation": n.invocation,
            "module": n.module,
            "kind": n.kind,
            "owner": n.owner,
            **(metrics | {m: v for m, v in n.costs.items() if m in metrics}),
        }
        for n in ledger.nodes
    ]


@_rows.register
def finding_rows(d: Discrepancy) -> list[dict[str, Any]]:
    """One row per finding: identity, a column per source, delta, causes, residual."""
    sources = order(d.coverage)
    plain = ("id", "level", "stage", "invocation", "module", "kind", "metric", "status", "count")
    return [
        {
            **{name: getattr(f, name) for name in plain},
            **{s: f.values.get(s) for s in sources},
            **{name: getattr(f, name) for name in ("reference", "delta", "residual")},
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
            "modules": part.modules,
            "count": part.count,
            "kind": part.kind,
            "formula_of": part.owner,
            "formula": part.formula.expression,
            "each": part.each,
            "total": part.total,
        }
        for call in found.calls
        for part in call.parts
    ]


@_rows.register
def _changed(found: Diff) -> list[dict[str, Any]]:
    return diff_rows(found)


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
    """Activations that a caller sees go in or out: of the first call that is told of, and of all if all are."""
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
