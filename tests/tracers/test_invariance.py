"""The same work counts the same however it runs: 24 combinations, one number."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from costproof.ledger.workload import Attention, Dtype, Experts
from costproof.tracers.dynamic import dynamic_ledger
from costproof.tracers.static import static_ledger
from tests.tracers import small

ATTENTION: tuple[Attention, ...] = ("sdpa", "eager")
EXPERTS: tuple[Experts, ...] = ("grouped_mm", "batched_mm")
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32", "float16")
RUN = replace(small.PAGE, new_tokens=1)


@cache
def totals(attention: Attention, experts: Experts, dtype: Dtype, source: str) -> dict[str, int | None]:
    """Headline FLOPs by stage."""
    from costproof.ledger.evaluate import evaluate_ledger

    target = small.SmallTarget()
    run = replace(RUN, attention=attention, experts=experts, dtype=dtype)
    if source == "dynamic":
        ledger = dynamic_ledger(target, run).ledger
    else:
        values = {(i.stage, i.id): i.symbols for i in target.invocations(run)}
        ledger = evaluate_ledger(static_ledger(target, run), values, {})
    return {stage: ledger.stage_total(stage, "flops") for stage in small.STAGES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "experts", "dtype", "source"), list(product(ATTENTION, EXPERTS, DTYPES, ("static", "dynamic")))
)
def test_one_number(attention: Attention, experts: Experts, dtype: Dtype, source: str) -> None:
    found = totals(attention, experts, dtype, source)
    assert found == totals("sdpa", "grouped_mm", "bfloat16", "dynamic")
    # The projector by hand: 2 FLOPs, 128 features to 80, 4 positions of the page and 1 of each of 2 crops.
    assert found["projector"] == 2 * (4 + 2) * 128 * 80
