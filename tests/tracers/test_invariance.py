"""The same work counts the same however it runs: 26 combinations, one number.

A few of them hold every choice; ``pytest --thorough`` counts all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import pytest

from costproof.ledger.node import Ledger
from costproof.ledger.workload import AttentionKind, Dtype, ExpertKernel
from costproof.models.pages.page import Page, with_page
from costproof.patches import flash_attention
from costproof.tracers.dynamic import dynamic_ledger
from costproof.tracers.static import static_ledger
from tests.tracers import small
from tests.tracers.realistic import small_ocr


class Way(NamedTuple):
    """One way to run the model."""

    how: str
    """``exported`` or ``traced``."""
    device: str
    attention: AttentionKind
    experts: ExpertKernel
    dtype: Dtype


def ways() -> list[Way]:
    """Batched experts run in one dtype. FlashAttention has no CPU kernel and no float32, a loop needs numbers."""
    attentions: tuple[AttentionKind, ...] = ("sdpa", "eager", "flash_attention_2")
    experts: tuple[ExpertKernel, ...] = ("grouped_mm", "batched_mm", "eager")
    dtypes: tuple[Dtype, ...] = ("bfloat16", "float32")
    found = [
        Way(how, device, a, e, d)
        for (how, device), a, e, d in product(
            (("exported", "meta"), ("traced", "meta"), ("traced", "cpu")), attentions, experts, dtypes
        )
        if not (a == "flash_attention_2" and (device == "cpu" or d == "float32"))
        and not (e == "eager" and device == "meta")
        and not (e == "batched_mm" and d == "float32")
    ]
    assert len(found) == 26
    return found


def choices(way: Way) -> set[tuple[int, str]]:
    """The choices of a way, each with its place; how and device are one."""
    return set(enumerate((f"{way.how} {way.device}", *way[2:])))


def few() -> list[Way]:
    """Ways that hold every choice that there is: the next is always one with most new choices."""
    chosen: list[Way] = []
    missing = {choice for way in ways() for choice in choices(way)}
    while missing:
        chosen.append(max(ways(), key=lambda way: len(choices(way) & missing)))
        missing -= choices(chosen[-1])
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every choice, or all combinations."""
    if "way" in metafunc.fixturenames:
        found = ways() if metafunc.config.getoption("--thorough") else few()
        metafunc.parametrize("way", found, ids=map("-".join, found))


REFERENCE = Way("traced", "meta", "sdpa", "grouped_mm", "bfloat16")
# 2x2 features of the view: 2*3 + 1 vision tokens, 7 of text, S = 14.
RUN = with_page(small.PAGE, Page(128, 128), new_tokens=1)


@cache
def counted(way: Way) -> Ledger:
    """The small model's ledger, made that way."""
    target = small_ocr(device=way.device)
    run = replace(RUN, attention=way.attention, experts=way.experts, dtype=way.dtype)
    if way.how == "traced":
        return dynamic_ledger(target, run).ledger

    return static_ledger(target, run)


def totals(way: Way, metric: Any) -> dict[str, int | None]:
    """One metric by stage."""
    return {stage: counted(way).stage_total(stage, metric) for stage in small.STAGES}


@pytest.mark.slow
def test_one_number(way: Way) -> None:
    if way.attention == "flash_attention_2" and flash_attention.missing():
        pytest.skip(flash_attention.missing())
    found = totals(way, "flops")
    assert found == totals(REFERENCE, "flops")
    # The projector by hand: 2 FLOPs, 128 features to 80, 4 positions of the page.
    assert found["projector"] == 2 * 4 * 128 * 80
    # The decoder's attention by hand: 2 FLOPs, 2 layers, 5 heads, two products of 16 dimensions; the prompt
    # has 14 tokens, and the one step looks at 14 + 1.
    assert attention_flops(counted(way)) == (2 * 2 * 5 * 14 * 14 * (16 + 16), 2 * 2 * 5 * 1 * 15 * (16 + 16))


def attention_flops(ledger: Ledger) -> tuple[int, int]:
    """Headline FLOPs of the modules ``self_attn`` of the decoder themselves: prefill, decode."""
    found = {"prefill": 0, "decode": 0}
    for node in ledger.nodes:
        if node.module.endswith("self_attn") and node.stage in found:
            found[node.stage] += node.costs.get("flops") or 0
    return found["prefill"], found["decode"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "metric", ["vector_flops", "input_bytes", "output_bytes", "weight_read_bytes", "kv_cache_bytes"]
)
def test_fused_attention_is_one_work_in_every_metric(metric: str) -> None:
    if flash_attention.missing():
        pytest.skip(flash_attention.missing())
    for how in ("exported", "traced"):
        flash = Way(how, "meta", "flash_attention_2", "grouped_mm", "bfloat16")
        assert totals(flash, metric) == totals(flash._replace(attention="sdpa"), metric)
