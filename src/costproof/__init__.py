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

__version__ = "0.1.0"

_HOMES = {
    "capture": "costproof.api",
    "explain": "costproof.api",
    "formats": "costproof.reports.formats",
    "frame": "costproof.reports.frames",
    "operator_rule": "costproof.graph.rules",
    "read": "costproof.api",
    "reconcile": "costproof.api",
    "report": "costproof.api",
    "targets": "costproof.api",
    "view": "costproof.api",
    "workload": "costproof.api",
    "Report": "costproof.reports.report",
}

__all__ = [
    "Report",
    "__version__",
    "capture",
    "explain",
    "formats",
    "frame",
    "operator_rule",
    "read",
    "reconcile",
    "report",
    "targets",
    "view",
    "workload",
]

if TYPE_CHECKING:
    from costproof.api import capture, explain, read, reconcile, report, targets, view, workload
    from costproof.graph.rules import operator_rule
    from costproof.reports.formats import formats
    from costproof.reports.frames import frame
    from costproof.reports.report import Report


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'costproof' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
