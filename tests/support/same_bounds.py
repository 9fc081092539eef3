"""What formulas and graphs say of bounds of time, held against each other: no comparison of captures does so."""

from __future__ import annotations

from collections import Counter

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import ARITHMETIC, SKIPPABLE


def bounds_of(capture: Capture, source: str, metric: str) -> Counter[str]:
    """Return the sum of a metric in each stage."""
    ledger = capture.ledger(source)
    assert ledger is not None
    found = Counter[str]()
    for node in ledger.nodes:
        value = node.costs.get(metric, 0)
        assert value is not None, node.id
        found[node.stage] += value
    return found


def assert_same_bounds(capture: Capture) -> None:
    """Formulas leave out no product that the graph keeps; as many where no mask is a tensor; in the same dtypes."""
    of_formulas, of_graph = (bounds_of(capture, source, SKIPPABLE) for source in ("analytic", "static"))
    config = capture.target.config or {}
    masks = capture.workload.attention == "eager" or bool(config.get("window"))
    for stage in of_formulas | of_graph:
        assert of_formulas[stage] <= of_graph[stage], stage
        latents = stage == "decode" and "kv_rank" in config
        assert masks or latents or of_formulas[stage] == of_graph[stage], stage
    for dtype in ARITHMETIC:
        if dtype != capture.workload.dtype:
            assert bounds_of(capture, "analytic", f"{dtype}_flops") == bounds_of(capture, "static", f"{dtype}_flops")
