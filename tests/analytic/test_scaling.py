"""Laws that the totals obey whatever the numbers are."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costproof.ledger.metrics import Metric
from costproof.ledger.node import Ledger
from costproof.ledger.workload import AttentionKind
from costproof.models.pages.formulas import PageStructure
from tests.analytic.published import counted, page

SMALL = PageStructure(sam_layers=2, sam_global_layers=(1,), second_layers=2, text_layers=2)
FAST = settings(max_examples=25)


def total(result: Ledger, stage: str, metric: Metric = "flops") -> int:
    value = result.stage_total(stage, metric)
    assert value is not None
    return value


@FAST
@given(batch=st.integers(1, 40), prompt=st.integers(1, 3000))
def test_prefill_work_is_linear_in_the_batch(batch: int, prompt: int) -> None:
    one, many = counted(SMALL, prompt=prompt), counted(SMALL, prompt=prompt, batch=batch)
    assert total(many, "prefill") == batch * total(one, "prefill")


@FAST
@given(prompt=st.integers(1, 3000))
def test_prefill_work_is_quadratic_in_the_prompt(prompt: int) -> None:
    # third differences of a quadratic vanish, second ones are twice the leading coefficient:
    # 4 * heads * head_dim per layer
    f = [total(counted(SMALL, prompt=prompt + i), "prefill") for i in range(4)]
    assert f[3] - 3 * f[2] + 3 * f[1] - f[0] == 0
    assert f[2] - 2 * f[1] + f[0] == 2 * 2 * 4 * 10 * 128


@FAST
@given(batch=st.integers(1, 9), context=st.integers(1, 3000))
def test_one_decode_step_is_the_last_token_of_a_prefill(batch: int, context: int) -> None:
    # Headline work outside attention is per token; a step's attention is one row of the prefill's scores.
    step = counted(SMALL, context=context, batch=batch)
    prefill = counted(SMALL, prompt=context + 1, batch=batch)

    def split(result: Ledger, stage: str) -> tuple[int, int]:
        attention = result.total("flops", lambda n: n.stage == stage and n.kind == "attention")
        assert attention is not None
        return attention, total(result, stage) - attention

    attention, other = split(step, "decode")
    whole_attention, whole_other = split(prefill, "prefill")
    assert whole_attention == (context + 1) * attention
    assert whole_other == (context + 1) * other


@pytest.mark.parametrize("stage", ["sam", "clip", "projector"])
@FAST
@given(batch=st.integers(1, 12), side=st.integers(1, 20))
def test_vision_work_is_linear_in_the_views(stage: str, batch: int, side: int) -> None:
    structure = page(64 * side, sam_layers=2, sam_global_layers=(1,), second_layers=2, text_layers=1)
    one = counted(structure, base=64 * side)
    many = counted(structure, base=64 * side, batch=batch)
    assert total(many, stage) == batch * total(one, stage)
    assert total(many, stage, "weight_read_bytes") == total(one, stage, "weight_read_bytes")


@FAST
@given(batch=st.integers(1, 9), prompt=st.integers(1, 500))
def test_the_dtype_scales_bytes_and_nothing_else(batch: int, prompt: int) -> None:
    half = counted(SMALL, batch=batch, prompt=prompt, item_bytes=2)
    single = counted(SMALL, batch=batch, prompt=prompt, item_bytes=4)
    same: tuple[Metric, ...] = ("flops", "vector_flops", "calls", "params")
    doubled: tuple[Metric, ...] = ("weight_bytes", "weight_read_bytes", "kv_cache_bytes")
    for metric in same:
        assert half.total(metric) == single.total(metric)
    for metric in doubled:
        assert 2 * (half.total(metric) or 0) == single.total(metric)
    # the router's weights and the rotary frequencies are float32 in both
    fixed = 4 * batch * prompt * 6
    assert 2 * total(half, "prefill", "output_bytes") - total(single, "prefill", "output_bytes") == fixed
    assert 2 * total(half, "prefill", "input_bytes") - total(single, "prefill", "input_bytes") == fixed + 4 * 64


@pytest.mark.parametrize("metric", ["flops", "params", "calls", "weight_read_bytes", "output_bytes"])
def test_attention_implementation_does_not_matter(metric: Metric) -> None:
    views = page(1024, 640).views
    totals = {
        counted(PageStructure(views=views, attention=a), prompt=800).total(metric) for a in get_args(AttentionKind)
    }
    assert len(totals) == 1


def test_eager_attention_reads_a_mask_in_every_decoder_layer() -> None:
    fused = counted(PageStructure(attention="sdpa"), prompt=100, batch=3)
    eager = counted(PageStructure(attention="eager"), prompt=100, batch=3)
    # 12 layers; one mask of 3 * 100 * 100 bfloat16, added to 10 heads of scores
    assert total(eager, "prefill", "input_bytes") - total(fused, "prefill", "input_bytes") == 12 * 3 * 100 * 100 * 2
    assert total(eager, "prefill", "vector_flops") - total(fused, "prefill", "vector_flops") == 12 * 3 * 10 * 100 * 100
