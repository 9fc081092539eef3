"""Findings as flat rows, for a DataFrame or a table."""

from __future__ import annotations

from collections.abc import Sequence

from costproof.compare.align import order
from costproof.compare.findings import Discrepancy, Finding

Cell = str | int | None


def finding_rows(d: Discrepancy, findings: Sequence[Finding] | None = None) -> list[dict[str, Cell]]:
    """One row per finding: identity, a column per source, delta, causes, residual.

    Args:
        findings: a selection; all findings of ``d`` otherwise.
    """
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
        for f in (d.findings if findings is None else findings)
    ]
