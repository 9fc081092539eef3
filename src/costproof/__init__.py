"""Count the work of a neural network three ways and account for every difference.

    import costproof

    report = costproof.report("deepseek-ocr", preset="gundam", grid="3x2")
    report                      # the summary table
    report.verdict              # "exact", "explained", "unexplained" or "incomplete"
    report.findings()           # a DataFrame
    costproof.explain("deepseek-ocr", "sam", module="*attn*")

Importing this package imports neither torch nor transformers nor sympy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# These two rooms have the name of a verb. They are loaded first, so that the verb keeps the name.
import costproof.compare
import costproof.graph  # noqa: F401
from costproof.api import (
    capture,
    check,
    compare,
    counters,
    derive,
    doctor,
    drawable,
    explain,
    graph,
    ops,
    prove,
    read,
    read_request,
    render,
    report,
    request,
    schema,
    settings,
    stages,
    targets,
    verify,
    workload,
    workloads,
)
from costproof.ledger.environment import VERSION as __version__

_LAZY = {
    "formats": "costproof.reports.outputs",
    "frame": "costproof.reports.frames",
    "operator_rule": "costproof.graph.rules",
    "Report": "costproof.reports.report",
    "RunRequest": "costproof.run.request",
}

__all__ = [
    "Report",
    "RunRequest",
    "__version__",
    "capture",
    "check",
    "compare",
    "counters",
    "derive",
    "doctor",
    "drawable",
    "explain",
    "formats",
    "frame",
    "graph",
    "operator_rule",
    "ops",
    "prove",
    "read",
    "read_request",
    "render",
    "report",
    "request",
    "schema",
    "settings",
    "stages",
    "targets",
    "verify",
    "workload",
    "workloads",
]

if TYPE_CHECKING:
    from costproof.graph.rules import operator_rule
    from costproof.reports.frames import frame
    from costproof.reports.outputs import formats
    from costproof.reports.report import Report
    from costproof.run.request import RunRequest


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'costproof' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
