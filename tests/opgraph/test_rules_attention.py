"""Fused attention against the products that it is made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.support.opcalls import call, counted, taken, torch_count, value

aten = torch.ops.aten
side = st.integers(1, 4)


@settings(max_examples=30)
@given(b=side, heads=side, share=side, q=side, k=side, d=side, dv=side, causal=st.booleans())
def test_sdpa_is_its_two_products(
    b: int, heads: int, share: int, q: int, k: int, d: int, dv: int, causal: bool
) -> None:
    query, key, val = torch.ones(b, heads * share, q, d), torch.ones(b, heads, k, d), torch.ones(b, heads, k, dv)
    kwargs = {"enable_gqa": True, "is_causal": causal}
    op, _ = taken(aten.scaled_dot_product_attention.default, query, key, val, **kwargs)
    with sdpa_kernel(SDPBackend.MATH):  # two bmm, which torch's counter sees; all S_q x S_k scores, causal or not
        expected = torch_count(aten.scaled_dot_product_attention.default, query, key, val, **kwargs)
    assert counted(op).flops == expected
    scores = b * heads * share * q * k
    assert counted(op).vector == 6 * scores  # scale, max, subtract, exp, sum, divide


def test_a_mask_tensor_is_one_addition_per_score() -> None:
    q, mask = value(2, 3, 5, 8), value(5, 5)
    plain = call("scaled_dot_product_attention", [q, q, q], [value(2, 3, 5, 8)])
    masked = call("scaled_dot_product_attention", [q, q, q, mask], [value(2, 3, 5, 8)])
    named = call(
        "aten.scaled_dot_product_attention.default", [q, q, q, mask], [value(2, 3, 5, 8)],
        names={"query": q, "key": q, "value": q, "attn_mask": mask},
    )  # fmt: skip
    scores = 2 * 3 * 5 * 5
    assert counted(plain).vector == 6 * scores
    assert counted(masked).vector == counted(named).vector == 7 * scores
    assert counted(masked).flops == 2 * scores * 16


@settings(max_examples=40)
@given(q=side, k=side, mask_q=side, mask_k=side)
def test_a_mask_that_does_not_fit_fails_where_torch_fails(q: int, k: int, mask_q: int, mask_k: int) -> None:
    query, key, mask = torch.ones(1, 1, q, 8), torch.ones(1, 1, k, 8), torch.ones(mask_q, mask_k)
    try:
        torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask)
        runs = True
    except RuntimeError:
        runs = False
    values = [value(1, 1, q, 8), value(1, 1, k, 8), value(1, 1, k, 8), value(mask_q, mask_k)]
    cost = cost_of(call("scaled_dot_product_attention", values, [value(1, 1, q, 8)]))
    assert isinstance(cost, UnknownCost) != runs


@pytest.mark.parametrize(
    "name",
    [
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
        "aten._scaled_dot_product_attention_math.default",
    ],
)
def test_all_kernels_count_the_same(name: str) -> None:
    q, kv = value(2, 6, 5, 8), value(2, 3, 7, 8)
    op = call(name, [q, kv, kv], [value(2, 6, 5, 8), value(2, 6, 5)], names={"query": q, "key": kv, "value": kv})
    assert counted(op).flops == 2 * (2 * 6 * 5 * 7) * (8 + 8)


def test_sequence_first_layout() -> None:
    q, kv = value(2, 5, 6, 8), value(2, 7, 3, 8)  # (B, S, H, D)
    op = call("flash_attn._flash_attn_forward.default", [q, kv, kv], [value(2, 5, 6, 8)])
    assert counted(op).flops == 2 * (2 * 6 * 5 * 7) * 16


def test_packed_sequences_are_unknown() -> None:
    q, lengths = value(2, 5, 6, 8), value(3, dtype="int32")
    op = call("aten._flash_attention_forward.default", [q, q, q, lengths], [value(2, 5, 6, 8)],
              names={"query": q, "key": q, "value": q, "cum_seq_q": lengths})  # fmt: skip
    unknown = cost_of(op)
    assert isinstance(unknown, UnknownCost)
    assert "packed" in unknown.why
    assert isinstance(cost_of(call("_flash_attention_forward", [value(9, 6, 8)] * 3, [value(9, 6, 8)])), UnknownCost)
