"""FlashAttention's operators count as any other attention: 2 * pairs * heads * (D + D_v)."""

from __future__ import annotations

import pytest

from costproof.tracers.rules.registry import Unruled, cost_of
from tests.tracers.opcalls import call, counted, value


@pytest.mark.parametrize("name", ["flash_attn._flash_attn_forward.default", "flash_attn_func"])
def test_fixed_length(name: str) -> None:
    q, kv = value(2, 5, 6, 8), value(2, 7, 3, 8)
    assert counted(call(name, [q, kv, kv], [value(2, 5, 6, 8)])).flops == 2 * (2 * 6 * 5 * 7) * 16


@pytest.mark.parametrize("name", ["flash_attn._flash_attn_varlen_forward.default", "flash_attn_varlen_func"])
def test_variable_length(name: str) -> None:
    q, k = value(10, 6, 8), value(14, 3, 8)
    one, two = value(2, dtype="int32"), value(3, dtype="int32")
    assert counted(call(name, [q, k, k, one, one], [value(10, 6, 8)])).flops == 2 * (6 * 10 * 14) * 16
    equal = {"max_seqlen_q": 5, "max_seqlen_k": 7}
    assert counted(call(name, [q, k, k, two, two], [value(10, 6, 8)], equal)).flops == 2 * (2 * 6 * 5 * 7) * 16
    unequal = cost_of(call(name, [q, k, k, two, two], [value(10, 6, 8)], {"max_seqlen_q": 9, "max_seqlen_k": 13}))
    assert isinstance(unequal, Unruled)
    assert unequal.bound == 2 * (2 * 6 * 9 * 13) * 16
    assert isinstance(cost_of(call(name, [q, k, k], [value(10, 6, 8)])), Unruled)


def test_cache() -> None:
    q, cache = value(2, 1, 6, 8), value(2, 64, 3, 8)
    name = "flash_attn_with_kvcache"
    assert counted(call(name, [q, cache, cache], [q])).flops == 2 * (2 * 6 * 1 * 64) * 16
    new = value(2, 1, 3, 8)
    names = {"q": q, "k_cache": cache, "v_cache": cache, "k": new, "v": new}
    filled = call(name, [q, cache, cache, new, new], [q], {"cache_seqlens": 40}, names)
    assert counted(filled).flops == 2 * (2 * 6 * 1 * 41) * 16
    lengths = value(2, dtype="int32")
    unknown = cost_of(call(name, [q, cache, cache], [q], names={**names, "cache_seqlens": lengths}))
    assert isinstance(unknown, Unruled)
    assert unknown.bound == 2 * (2 * 6 * 1 * 64) * 16
