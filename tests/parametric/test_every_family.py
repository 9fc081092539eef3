"""Every number of every family's configuration at once: nothing that was traced stays behind, and the totals agree."""

from __future__ import annotations

from typing import Any

import pytest

from costproof import api
from costproof.analytic.costs import costs_of
from costproof.ledger.errors import CostproofError
from costproof.models.registry import load_target
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.targets import evaluate_formulas

SMALL = {"layers": 3, "decoder_layers": 2, "text.layers": 2, "sam.layers": 3, "clip.layers": 1}
"""Few layers, where a family has that key and can be cut so."""
LISTS = {"sam.global_layers": [2], "deep": [1]}


@pytest.mark.parametrize("name", api.families())
def test_all_numbers_of_a_family(name: str) -> None:
    points, usual = Evaluator.of(name), load_target(name)
    now = points.keys()
    keys: dict[str, Any] = {k: v for k, v in now.items() if type(v) is int}
    keys |= {k: v for k, v in (SMALL | LISTS).items() if k in now}
    costs_of.cache_clear()
    try:
        found = points.at(keys)
    except CostproofError as error:
        pytest.fail(f"the small {name} is refused: {error}")
    target: Any = usual
    target = target.with_keys({k: v for k, v in keys.items() if v != now[k]})
    ledger = evaluate_formulas(target, target.workload())
    for (stage, metric), total in found.totals.items():
        assert total == (ledger.stage_total(stage, metric) if stage else ledger.total(metric)), (stage, metric)
