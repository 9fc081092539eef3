"""The record of which metrics each source gives of the built-in families.

A source that stops giving a metric is compared in fewer quantities, and nothing differs. The record makes its silence a
finding. ``make recorded`` writes it; a family of another distribution has none.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from costproof.ledger.metrics import UNFUSED, Metric
from costproof.ledger.run import GRAPH_SOURCES
from costproof.ledger.workload import Workload
from costproof.models.target import Target, options_of

RECORD: Final = Path(__file__).with_name("recorded.json")
"""A list of groups: the families that are alike, and what each source gives of them."""


def family_of(target: Target) -> str:
    """Return the built-in family of a target, for example ``llama``; empty for any other target."""
    package, _, rest = type(target).__module__.partition(".families.")
    return rest.partition(".")[0] if package == __package__ else ""


def recorded(target: Target, workload: Workload) -> dict[str, tuple[Metric, ...]]:
    """Return the metrics that each source is on record to give of a target; empty where there is no record.

    A run whose operators data or a device chooses does not tell what each of them moves.
    """
    found = _record().get(family_of(target), {})
    if workload.experts != "eager" and options_of(target).device == "meta":
        return dict(found)
    runs = [s for s in GRAPH_SOURCES if s != "static"]
    return {s: tuple(m for m in metrics if s not in runs or m != UNFUSED) for s, metrics in found.items()}


@cache
def _record() -> dict[str, dict[str, tuple[Metric, ...]]]:
    groups = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        family: {source: tuple(metrics) for source, metrics in group["sources"].items()}
        for group in groups
        for family in group["families"]
    }
