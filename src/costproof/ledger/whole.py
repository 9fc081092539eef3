"""A whole model whose first layers were counted: numbers that no source gave, worked out and checked."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.ledger.metrics import Metric


@dataclass(frozen=True, slots=True)
class WholeModel:
    """What the whole model costs if every layer that was left out costs what the kept one of its kind does."""

    times: dict[str, tuple[int, ...]]
    """Path of a stack of layers -> for how many layers each kept one stands."""
    checked: dict[str, int]
    """The same -> layers of the second count, which leads to the same numbers."""
    stages: dict[str, dict[Metric, int]]
    """Stage -> metric -> cost, of the metrics for which both counts, and all sources, say the same."""
    totals: dict[Metric, int]
    """Over all stages."""
    left_out: dict[str, str]
    """Metric -> why the whole model's is not known."""
    not_run: str = ""
    """Why no run of all layers on shapes was compared with this; empty where one was."""
