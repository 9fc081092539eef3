"""Every error that the benchmark plants into the hand-made capture is found and located."""

from __future__ import annotations

import pytest

from costproof.algebra.symbols import parse
from tests.oracles.mutations import checked_metrics, run, table
from tests.oracles.planting import OPERATIONS, plant, sites
from tests.support import builders as b


def test_all_planted_errors_are_located() -> None:
    outcomes = run("toy", b.capture(), None)
    assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
    assert {o.planted.operation for o in outcomes} == set(OPERATIONS)
    assert len(outcomes) >= 40
    assert "planted" in table(outcomes)


def test_what_is_planted() -> None:
    capture = b.capture()
    ledger = b.analytic()
    (site,) = [s for s in sites(ledger, ("flops",)) if s.owner == "attention"]
    planted = {(p.operation, p.what): p for p in plant(capture, ledger, site)}
    half = planted[("halve", "1/2")]
    # 4*B*S**2*8 = 576 becomes 288 in all four layers.
    wrong = [n for n in half.ledger.nodes if n.owner == "attention" and n.costs.get("flops") == 288]
    assert [n.module for n in wrong] == [f"layers.{i}.attn" for i in range(4)]
    assert half.difference == -parse("2*B*S**2*text_hidden")
    assert planted[("one layer too many", "layers.4.attn")].modules == ("layers.4.attn",)
    assert planted[("drop the node", "layers.3.attn")].modules == ("layers.3.attn",)


@pytest.mark.parametrize("metric", ["flops", "vector_flops", "params", "calls"])
def test_every_metric_is_hit(metric: str) -> None:
    assert metric in checked_metrics(b.capture())
    assert any(s.metric == metric for s in sites(b.analytic(), checked_metrics(b.capture())))
