"""FlashAttention's operators count as any other attention: 2 * pairs * heads * (D + D_v)."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from costproof.algebra.symbols import sym
from costproof.compare.kinds import kind_of
from costproof.ledger.node import UnknownOp
from costproof.opgraph.costed import bound_unknown, cost_graph, substitute_sizes
from costproof.opgraph.graph import Graph, OpCall, Value
from costproof.opgraph.rules.attention import unpadded
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical, source_kind
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.support.opcalls import call, counted, value

N = sym("n")
FIXED = ["flash_attn._flash_attn_forward.default", "flash_attn_func", "_flash_attn2_cuda_9e27194::fwd"]
PACKED = [
    "flash_attn._flash_attn_varlen_forward.default",
    "flash_attn_varlen_func",
    "_flash_attn_2b4ec51_dirty::varlen_fwd",
    "_vllm_fa2_C::varlen_fwd",
]
THIRD = ["_vllm_flash_attn3_cuda_9aa33c0::fwd", "_flash_attn3_48fe103::fwd", "flash_attn_3::fwd", "_vllm_fa3_C::fwd"]


def named(name: str, attrs: dict[str, Any] | None = None, **tensors: Value) -> OpCall:
    """A call whose tensors are known by the names of the schema."""
    return call(name, list(tensors.values()), [tensors["q"]], attrs, tensors)


def unknown(op: OpCall) -> UnknownCost:
    cost = cost_of(op)
    assert isinstance(cost, UnknownCost), cost
    return cost


@pytest.mark.parametrize("name", [*FIXED, *THIRD])
def test_fixed_length(name: str) -> None:
    # 2 sequences, 5 queries and 7 keys each, 6 heads that share 3, 8 dimensions in both products.
    q, kv = value(2, 5, 6, 8), value(2, 7, 3, 8)
    cost = counted(named(name, {"causal": True, "window_size_left": 3}, q=q, k=kv, v=kv))
    assert cost.flops == 2 * (2 * 6 * 5 * 7) * (8 + 8)
    assert cost.vector == 6 * (2 * 6 * 5 * 7)  # scale, maximum, subtraction, exponential, sum, division


@pytest.mark.parametrize("name", FIXED)
def test_what_is_done_to_a_score_on_the_way(name: str) -> None:
    q, slopes, pairs = value(2, 5, 6, 8), value(6), 2 * 6 * 5 * 5
    assert counted(named(name, {"softcap": 30.0}, q=q, k=q, v=q)).vector == (6 + 3) * pairs
    assert counted(named(name, {"softcap": 0.0}, q=q, k=q, v=q)).vector == 6 * pairs
    alibi = counted(named(name, q=q, k=q, v=q, alibi_slopes=slopes))
    assert (alibi.vector, alibi.flops) == ((6 + 2) * pairs, 2 * pairs * (8 + 8))


@pytest.mark.parametrize("name", PACKED)
def test_variable_length(name: str) -> None:
    q, k = value(10, 6, 8), value(14, 3, 8)
    one, two = value(2, dtype="int32"), value(3, dtype="int32")
    assert counted(named(name, q=q, k=k, v=k, cu_seqlens_q=one)).flops == 2 * (6 * 10 * 14) * 16
    equal = {"max_seqlen_q": 5, "max_seqlen_k": 7}
    assert counted(named(name, equal, q=q, k=k, v=k, cu_seqlens_q=two)).flops == 2 * (2 * 6 * 5 * 7) * 16
    unequal = {"max_seqlen_q": 9, "max_seqlen_k": 13}
    # 14 keys meet at most 9 queries each, which is less than 10 queries with at most 13 keys, or two times 9 x 13.
    assert unknown(named(name, unequal, q=q, k=k, v=k, cu_seqlens_q=two)).bound == 2 * (6 * 14 * 9) * 16
    # How much of the keys is used stands in a tensor, so equal lengths say nothing.
    partly = named(name, equal, q=q, k=k, v=k, cu_seqlens_q=two, seqused_k=two)
    assert unknown(partly).bound == 2 * (2 * 6 * 5 * 7) * 16
    assert isinstance(cost_of(named(name, q=q, k=k, v=k)), UnknownCost)


def test_lengths_in_symbols_are_bounded_at_their_sizes() -> None:
    rows, starts = value(5 * N, 6, 8), value(3, dtype="int32")
    lengths = {"max_seqlen_q": 3 * N, "max_seqlen_k": 3 * N, "softmax_scale": N ** sympy.Rational(-1, 2)}
    op = named(PACKED[0], lengths, q=rows, k=rows, v=rows, cu_seqlens_q=starts)
    work = cost_graph(Graph((op,), op.outputs))
    (found,) = bound_unknown([UnknownOp(source_kind(op.name), "s", "m", 1, None, "")], work, {"n": 4})
    # 20 rows in sequences of at most 12, 6 heads of 8: less than two sequences of 12.
    assert found.bound_flops == 2 * (6 * 20 * 12) * (8 + 8)
    (given,) = substitute_sizes(Graph((op,), ()), {"n": 4}).ops
    assert given.attrs == {**lengths, "max_seqlen_q": 12, "max_seqlen_k": 12}  # a scale is no size


@pytest.mark.parametrize("name", THIRD)
def test_the_third_version_is_one_operator_for_all(name: str) -> None:
    q, k = value(10, 6, 8), value(14, 3, 8)
    two = value(3, dtype="int32")
    lengths = {"max_seqlen_q": 5, "max_seqlen_k": 7}
    assert counted(named(name, lengths, q=q, k=k, v=k, cu_seqlens_q=two)).flops == 2 * (2 * 6 * 5 * 7) * 16
    # Queries of 8 dimensions meet keys of 8, a second query of 24 meets the values of 24, and so do the weights.
    q, k, v, second = value(2, 5, 6, 8), value(2, 7, 3, 8), value(2, 7, 3, 24), value(2, 5, 6, 24)
    assert counted(named(name, q=q, k=k, v=v, q_v=second)).flops == 2 * (2 * 6 * 5 * 7) * (8 + 24 + 24)
    used = value(2, dtype="int32")
    assert unknown(named(name, q=q, k=k, v=k, seqused_k=used)).bound == 2 * (2 * 6 * 5 * 7) * 16
    assert unknown(named(name, q=q, k=k, v=k, page_table=used)).why.startswith("a paged cache")
    assert "optional tensors are not named" in unknown(call(name, [q, k, k], [q])).why


@pytest.mark.parametrize("hub", [False, True])
def test_cache(hub: bool) -> None:
    q, cache, new = value(2, 1, 6, 8), value(2, 64, 3, 8), value(2, 1, 3, 8)
    lengths = value(2, dtype="int32")
    name = "_flash_attn2_9e27194::fwd_kvcache" if hub else "flash_attn_with_kvcache"
    held = {"kcache": cache, "vcache": cache} if hub else {"k_cache": cache, "v_cache": cache}
    filled = {"seqlens_k_": lengths} if hub else {"cache_seqlens": lengths}
    table = {"block_table_" if hub else "block_table": lengths}
    whole = 2 * (2 * 6 * 1 * 64) * 16
    assert counted(named(name, None, q=q, **held)).flops == whole
    assert unknown(named(name, None, q=q, **held, **filled)).bound == whole
    assert unknown(named(name, None, q=q, **held, **table)).why.startswith("a paged cache")
    if not hub:
        op = named(name, {"cache_seqlens": 40}, q=q, **held, k=new, v=new)
        assert counted(op).flops == 2 * (2 * 6 * 1 * 41) * 16


@pytest.mark.parametrize(
    "name", ["flash_attn._flash_attn_backward.default", "_flash_attn2_9e27194::bwd", "flash_attn_3::bwd"]
)
def test_a_backward_pass_is_out_of_scope(name: str) -> None:
    q = value(2, 5, 6, 8)
    found = unknown(named(name, dout=q, q=q, k=q, v=q))
    assert "only inference" in found.why
    assert found.bound == 5 * 2 * (2 * 6 * 5 * 5) * 8  # S = QKᵀ again, dV, dP, dQ, dK


@pytest.mark.parametrize(
    ("name", "operator", "kind"),
    [
        ("_flash_attn_9e27194::fwd", "flash_attn.fwd", "attention"),
        ("_flash_attn2_cuda_9e27194_dirty.fwd.default", "flash_attn2.fwd", "attention"),
        ("_vllm_flash_attn3_20250908181717::fwd", "vllm_flash_attn3.fwd", "attention"),
        ("flash_attn._flash_attn_forward.default", "flash_attn._flash_attn_forward", "attention"),
        ("_vllm_fa3_C::fwd", "_vllm_fa3_C.fwd", "attention"),
        # The hash is all that is taken off: what a kernel of that name does nobody here knows.
        ("_activation_cuda_f14618a::silu_and_mul", "activation.silu_and_mul", "activation.silu_and_mul"),
        ("_mylib_fast::fwd", "_mylib_fast.fwd", "_mylib_fast.fwd"),
    ],
)
def test_kernels_of_the_hub_are_known_without_the_hash_of_their_build(name: str, operator: str, kind: str) -> None:
    assert canonical(name) == operator
    assert kind_of(source_kind(name).replace("::", ".")) == kind


def test_a_kernel_that_is_only_called_alike_is_unknown() -> None:
    q = value(2, 5, 6, 8)
    assert unknown(named("_flash_attn4_9e27194::fwd", q=q, k=q, v=q)).why == "no rule for this operator"
    assert unknown(named("_mylib_fast::fwd", q=q, k=q, v=q)).why == "no rule for this operator"


def padded_graph(amount: list[int], fill: float | None = None) -> Graph:
    """Heads of 20 dimensions, padded to 24 for the kernel; the result cut back and read by a linear layer."""
    q, k, v = value(2, 5, 6, 20), value(2, 7, 6, 20), value(2, 7, 6, 20)
    wide = [value(*t.shape[:3], 24) for t in (q, k, v)]
    pads = [
        call("aten.constant_pad_nd.default", [t], [w], {"pad": amount, "value": fill})
        for t, w in zip((q, k, v), wide, strict=True)
    ]
    out, cut = value(2, 5, 6, 24), value(2, 5, 6, 20)
    flash = call("flash_attn._flash_attn_forward.default", wide, [out], names=dict(zip("qkv", wide, strict=True)))
    return Graph((*pads, flash, call("aten.slice.Tensor", [out], [cut])), (cut,))


def read_elsewhere(graph: Graph) -> Graph:
    """The same, and another operator reads the padded queries."""
    wide = graph.ops[0].outputs[0]
    return Graph((*graph.ops, call("aten.relu.default", [wide], [value(*wide.shape)])), graph.outputs)


def flash_in(graph: Graph) -> OpCost:
    return counted(next(op for op in graph.ops if "flash" in op.name))


def test_padded_heads_count_as_wide_as_the_model_has_them() -> None:
    pairs = 2 * 6 * 5 * 7
    assert flash_in(padded_graph([0, 4])).flops == 2 * pairs * (24 + 24)  # what the kernel gets
    found = unpadded(padded_graph([0, 4]))
    assert flash_in(found).flops == 2 * pairs * (20 + 20)
    # And the result is no wider for it, wherever it is read.
    assert found.ops[-2].outputs[0].shape == found.ops[-1].tensors[0].shape == (2, 5, 6, 20)
    # Nor does the padding move anything, which attention alone read.
    assert ["flash" in op.name for op in found.ops] == [True, False]
    assert len(unpadded(read_elsewhere(padded_graph([0, 4]))).ops) == 4


@pytest.mark.parametrize(("amount", "fill"), [([4, 0], None), ([0, 4], 1.0)])
def test_only_zeros_at_the_end_are_padding(amount: list[int], fill: float | None) -> None:
    graph = padded_graph(amount, fill)
    assert unpadded(graph) is graph


def test_values_that_are_padded_twice() -> None:
    """Values of 16 to the queries' 20 by transformers, all to 24 by the package."""
    graph = padded_graph([0, 4])
    narrow = value(2, 7, 6, 16)
    first = call("pad", [narrow], [graph.ops[2].tensors[0]], {"pad": [0, 4], "mode": "constant"})
    found = unpadded(Graph((first, *graph.ops), graph.outputs))
    assert flash_in(found).flops == 2 * (2 * 6 * 5 * 7) * (20 + 16)
    assert len(found.ops) == 2
