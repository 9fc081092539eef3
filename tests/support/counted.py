"""Totals of a capture on which its sources agree."""

from __future__ import annotations

from costproof.ledger.capture import Capture


def agreed_totals(capture: Capture) -> tuple[int, int, int]:
    """Return the FLOPs, kept scores and kept FLOPs on which graph and run agree, and what the judge counts."""
    found = set()
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        assert not ledger.unknown_ops
        found.add(tuple(ledger.total(metric) for metric in ("flops", "kept_scores", "kept_flops")))
    ((flops, scores, kept),) = found
    assert capture.judge is not None
    assert [capture.judge.total(metric) for metric in ("flops", "kept_scores", "kept_flops")] == [flops, scores, kept]
    assert flops is not None
    assert scores is not None
    assert kept is not None
    return flops, scores, kept


def attention_totals(products: int, scores: int, kept: int, width: int) -> tuple[int, int, int]:
    """Return FLOPs, kept scores and kept FLOPs by hand: two products of ``width`` for each score, and all others."""
    return products + 4 * width * scores, kept, products + 4 * width * kept
