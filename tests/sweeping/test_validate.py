"""Points of a sweep counted by their graphs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from costproof.ledger.environment import installed
from costproof.ledger.errors import BadInput
from costproof.parametric.evaluator import Regime
from costproof.run import sweep as validating
from costproof.run.sweep import sweep

TINY = {"layers": "1", "hidden": "64,100", "heads": "4", "kv_heads": "2,3", "head_dim": "16", "vocab": "64",
        "intermediate": "96", "text_tokens": "5:9"}  # fmt: skip

needs_joblib = pytest.mark.skipif(installed("joblib") is None, reason="joblib is not installed: the extra [sweep]")


@needs_joblib
def test_points_are_drawn_among_models_and_counted_exactly() -> None:
    made = sweep("llama", TINY)
    drawn = list(validating._draw_points(made, 100, random.Random(1)))
    # Of 2 x 2 x 5 points those with three key/value heads are refused.
    assert len(drawn) == 10
    found = made.validate(1, jobs=1)
    assert [(one.verdict, one.wrong, one.exit_code) for one in found] == [("exact", (), 0)]
    assert found == made.validate(1, jobs=1), "the same points for the same seed"


@needs_joblib
def test_a_number_that_is_not_that_of_the_report_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Regime.at

    def tampered(self: Regime, cells: Any, values: Any) -> Any:
        found = usual(self, cells, values)
        return found | {("prefill", "flops"): found["prefill", "flops"] + 1}

    monkeypatch.setattr(Regime, "at", tampered)
    (one,) = sweep("llama", TINY).validate(1, jobs=1)
    assert (one.verdict, one.exit_code) == ("unexplained", 1)
    assert one.wrong[0].startswith("prefill.flops: ")


@needs_joblib
def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    if installed("distributed") is None:
        pytest.skip("Dask is not installed: the extra [sweep]")
    monkeypatch.setattr("costproof.run.sweep._PATIENCE", 0.5)
    with pytest.raises(BadInput, match="not the address"):
        sweep("llama", TINY).validate(1, cluster="nowhere")
    with pytest.raises(BadInput, match="no Dask scheduler"):
        sweep("llama", TINY).validate(1, cluster="tcp://127.0.0.1:1")
