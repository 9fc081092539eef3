"""The second judge on every operator of fused attention: expected values are worked out by hand, for grouped heads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import register_flop_formula

import costproof
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from costproof.tracers.flop_counter_mode import Uncounted, attention_formula
from tests.support.opcalls import counted, taken
from tests.tracers.test_judge import ones, seen

aten: Any = torch.ops.aten

# 2 sequences, 6 query heads that share 3 key and value heads, 5 queries, 7 keys, 8 wide, values 16 wide.
SCORES = 2 * 6 * 5 * 7
FORWARD = 2 * SCORES * (8 + 16)
EQUAL_WIDTHS = 2 * SCORES * (8 + 8)
BACKWARD = 2 * SCORES * (8 + 16 + 16 + 8 + 8)
"""QKᵀ, the gradients of P and V over 16, of Q and K over 8."""
Q, K, V = ones(2, 6, 5, 8), ones(2, 3, 7, 8), ones(2, 3, 7, 16)
GRAD, LSE = ones(2, 6, 5, 16), ones(2, 6, 5)
SQ, SK, SV = (t.transpose(1, 2).contiguous() for t in (Q, K, V))
SEED = torch.zeros((), dtype=torch.int64)

CASES: dict[str, tuple[Callable[..., Any], dict[str, torch.Tensor], int]] = {
    "flash": (lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v), {"q": Q, "k": K, "v": V}, FORWARD),
    "flash, causal": (
        lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True), {"q": Q, "k": K, "v": K},
        EQUAL_WIDTHS,
    ),
    "efficient": (
        lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, False),
        {"q": Q, "k": K, "v": V}, FORWARD,
    ),
    "cudnn": (
        lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, False), {"q": Q, "k": K, "v": V},
        FORWARD,
    ),
    "overrideable": (
        lambda q, k, v: aten._scaled_dot_product_fused_attention_overrideable(q, k, v),
        {"q": Q, "k": K, "v": V}, FORWARD,
    ),
    "on a processor": (
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v), {"q": Q, "k": K, "v": V}, FORWARD,
    ),
    "math": (
        lambda q, k, v: aten._scaled_dot_product_attention_math(q, k, v, enable_gqa=True),
        {"q": Q, "k": K, "v": V}, FORWARD,
    ),
    "mps": (
        lambda q, k, v: aten._scaled_dot_product_attention_math_for_mps(q, k, v),
        {"q": Q, "k": ones(2, 6, 7, 8), "v": ones(2, 6, 7, 16)}, FORWARD,
    ),
    # The kernels below take (B, S, H, D).
    "kernel of flash": (
        lambda q, k, v: aten._flash_attention_forward(q, k, v, None, None, 5, 7, 0.0, False, False),
        {"q": SQ, "k": SK, "v": SV}, FORWARD,
    ),
    "kernel of efficient": (
        lambda q, k, v: aten._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, 0),
        {"q": SQ, "k": SK, "v": SV}, FORWARD,
    ),
    # Packed rows: one sequence of 5 queries and 7 keys; three sequences of 4 queries and 6 keys each.
    "one packed": (
        lambda q, k, v, s: aten._flash_attention_forward(q, k, v, s, s, 5, 7, 0.0, False, False),
        {"q": ones(5, 6, 8), "k": ones(7, 3, 8), "v": ones(7, 3, 16), "s": torch.tensor([0, 5])}, FORWARD // 2,
    ),
    "three packed": (
        lambda q, k, v, s: aten._flash_attention_forward(q, k, v, s, s, 4, 6, 0.0, False, False),
        {"q": ones(12, 6, 8), "k": ones(18, 3, 8), "v": ones(18, 3, 8), "s": torch.tensor([0, 4, 8, 12])},
        2 * (3 * 6 * 4 * 6) * (8 + 8),
    ),
    "three packed, efficient": (
        lambda q, k, v, s: aten._efficient_attention_forward(q, k, v, None, s, s, 4, 6, 0.0, 0),
        {"q": ones(1, 12, 6, 8), "k": ones(1, 18, 3, 8), "v": ones(1, 18, 3, 8), "s": torch.tensor([0, 4, 8, 12])},
        2 * (3 * 6 * 4 * 6) * (8 + 8),
    ),
    # A layer: projections of 3 x 4 rows of 10, scores of 3 x 4 x 4 over all 10, output of 10.
    "layer": (
        lambda x, w, b, o, c: aten._native_multi_head_attention(x, x, x, 10, 2, w, b, o, c, None, False),
        {"x": ones(3, 4, 10), "w": ones(30, 10), "b": ones(30), "o": ones(10, 10), "c": ones(10)},
        2 * 12 * 10 * 30 + 2 * 3 * 4 * 4 * (10 + 10) + 2 * 12 * 10 * 10,
    ),
    "flash, backward": (
        lambda g, q, k, v, s: aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, g, LSE.to(g.device), s, s, 5, 7, 0.0, False, SEED.to(g.device), SEED.to(g.device)
        ),
        {"g": GRAD, "q": Q, "k": K, "v": V, "s": SEED}, BACKWARD,
    ),
    "on a processor, backward": (
        lambda g, q, k, v: aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, g, LSE.to(g.device), 0.0, False
        ),
        {"g": GRAD, "q": Q, "k": K, "v": V}, BACKWARD,
    ),
    "kernel of flash, backward": (
        lambda g, q, k, v: aten._flash_attention_backward(
            g, q, k, v, g, LSE.to(g.device), None, None, 5, 7, 0.0, False, SEED.to(g.device), SEED.to(g.device)
        ),
        {"g": GRAD.transpose(1, 2), "q": SQ, "k": SK, "v": SV}, BACKWARD,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_operator_on_meta(case: str) -> None:
    function, tensors, expected = CASES[case]
    found = seen(function, "meta", **tensors)
    assert (found.flops.total(), found.unjudged.total()) == (expected, 0), found.reasons


def test_no_operator_of_attention_is_without_a_formula() -> None:
    """In any version of torch: one with a new name is not taken for an operator without products."""
    names = {s.name for s in torch._C._jit_get_all_schemas() if "attention" in s.name and s.name.startswith("aten::")}
    composite = {"aten.scaled_dot_product_attention", "aten._scaled_dot_product_attention_math"}
    assert len(names) > 15
    for name in sorted(n.replace("::", ".") for n in names):
        assert attention_formula(name) is not None or name in composite, name


def shaped(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def direct(name: str, **given: Any) -> int:
    formula = attention_formula(name)
    assert formula is not None
    return formula(given, lambda tensor: tensor.shape[-1])


def test_operators_that_have_no_kernel_on_meta() -> None:
    # cuDNN's lowest operator takes (B, H, S, D), or packed rows (T, H, D).
    dense = {"query": shaped(2, 6, 5, 8), "key": shaped(2, 3, 7, 8), "value": shaped(2, 3, 7, 16)}
    assert direct("aten._cudnn_attention_forward", **dense) == FORWARD
    assert direct("aten._cudnn_attention_backward", **dense) == BACKWARD
    packed = {"query": shaped(12, 6, 8), "key": shaped(18, 3, 8), "value": shaped(18, 3, 8)}
    starts = {"cum_seq_q": torch.tensor([0, 3, 12]), "cum_seq_k": torch.tensor([0, 10, 18]), "max_q": 9, "max_k": 10}
    unequal = 2 * 6 * (3 * 10 + 9 * 8) * (8 + 8)
    assert direct("aten._cudnn_attention_forward", **packed, **starts) == unequal
    assert direct("aten._flash_attention_forward", **packed, **starts) == unequal
    assert direct("torch_attn._varlen_attn", **packed, cu_seq_q=starts["cum_seq_q"], cu_seq_k=starts["cum_seq_k"],
                  max_q=9, max_k=10) == unequal  # fmt: skip
    assert direct("aten._triton_scaled_dot_attention", q=Q, k=K, v=V) == FORWARD
    # Layers: attention of 4 queries over 6 keys, and a feed-forward of 20 after one over itself.
    layer = {"query": shaped(3, 4, 10), "key": shaped(3, 6, 10), "proj_weight": shaped(10, 10)}
    assert direct("aten._triton_multi_head_attention", **layer) == (
        2 * 3 * 10 * 10 * (4 + 6 + 6) + 2 * 3 * 4 * 6 * 20 + 2 * 3 * 4 * 10 * 10
    )
    encoder = {"src": shaped(3, 4, 10), "proj_weight": shaped(10, 10), "ffn_weight_1": shaped(20, 10),
               "ffn_weight_2": shaped(10, 20)}  # fmt: skip
    attention = 2 * 12 * 10 * 30 + 2 * 3 * 4 * 4 * 20 + 2 * 12 * 10 * 10
    assert direct("aten._transformer_encoder_layer_fwd", **encoder) == attention + 2 * (2 * 12 * 10 * 20)


def test_lengths_that_only_values_give_are_not_guessed() -> None:
    packed = {"query": shaped(12, 6, 8), "key": shaped(12, 3, 8), "value": shaped(12, 3, 8)}
    for more in (
        {"cum_seq_q": torch.empty(4, device="meta"), "max_q": 9, "max_k": 9},
        {"cum_seq_q": torch.tensor([0, 6, 12]), "seqused_k": torch.empty(2, device="meta")},
        {"cum_seq_q": torch.tensor([0, 6, 12]), "block_table": torch.ones(2, 2)},
    ):
        with pytest.raises(Uncounted, match="values"):
            direct("aten._flash_attention_forward", **packed, **more)
    # Two sequences of 6 queries each, with 1 and 2 keys.
    used = {"cum_seq_q": torch.tensor([0, 6, 12]), "seqused_k": torch.tensor([1, 2])}
    assert direct("aten._flash_attention_forward", **packed, **used) == 2 * 6 * (6 * 1 + 6 * 2) * (8 + 8)
    found = seen(
        lambda q, s: aten._flash_attention_forward(q, q, q, s, s, 9, 9, 0.0, False, False),
        q=ones(12, 6, 8), s=torch.tensor([0, 3, 12]),
    )  # fmt: skip
    assert (found.flops.total(), found.unjudged.total()) == (0, 1)
    assert found.reasons == {"aten._flash_attention_forward": "the lengths are in a tensor's values"}


@torch.jit.script
def padded(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """As torch does on CUDA: heads of 6 padded to 8 below Python, and the result cut."""
    q, k = torch.constant_pad_nd(q, [0, 2]), torch.constant_pad_nd(k, [0, 2])
    return torch._scaled_dot_product_flash_attention(q, k, k, 0.0, False, False)[0][..., :6]


def test_columns_of_zeros_are_no_work() -> None:
    found = seen(padded, "meta", q=ones(2, 6, 5, 6), k=ones(2, 3, 7, 6))
    assert found.flops.total() == 2 * SCORES * (6 + 6)


LIKE = {"query": SQ, "key": SK, "value": SV}


@pytest.mark.parametrize("case", ["flash", "efficient", "cudnn", "kernel of flash", "kernel of efficient",
                                  "one packed", "three packed", "three packed, efficient"])  # fmt: skip
def test_the_rules_say_the_same(case: str) -> None:
    function, tensors, expected = CASES[case]
    operators = SimpleNamespace(**{n: taken_of(n) for n in dir(aten) if "attention" in n})
    tensors = {name: tensor.to("meta") for name, tensor in tensors.items()}
    # The lambdas call ``aten``; here the calls are kept in place of run.
    kept: Any = type(function)
    found = kept(function.__code__, {"aten": operators})(**tensors)
    assert counted(found).flops == expected


def taken_of(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: taken(getattr(aten, name).default, *args, **kwargs)[0]


def test_backward_passes_have_a_bound_and_no_count() -> None:
    meta = [t.to("meta") for t in (GRAD, Q, K, V, GRAD, LSE)]
    op, _ = taken(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, *meta, 0.0, False)
    unknown = cost_of(op)
    assert isinstance(unknown, UnknownCost)
    assert unknown.bound == BACKWARD


class Odd(torch.nn.Module):
    """Calls an operator of another package."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3, 5] -> [3, 5]."""
        made: torch.Tensor = torch.ops.judged_odd.fused(x)
        return made


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: 1 // 0, "its formula failed: ZeroDivisionError: "),
        (lambda: "many", "its formula failed: TypeError: "),
        (lambda: 2.5, "its formula failed: TypeError: "),
        (lambda: -3, "its formula failed: ValueError: -3 FLOP"),
    ],
)
def test_a_formula_of_another_package_that_fails_is_a_note(answer: Callable[[], Any], said: str) -> None:
    from torch.utils.flop_counter import flop_registry

    library: Any = torch.library
    library = library.Library("judged_odd", "DEF")
    library.define("fused(Tensor x) -> Tensor")
    library.impl("fused", lambda x: torch.empty_like(x), "Meta")
    packet = torch.ops.judged_odd.fused
    register_flop_formula(packet, get_raw=True)(lambda *args, **kwargs: answer())
    try:
        found = costproof.count(torch.nn.Sequential(torch.nn.Linear(5, 5, bias=False), Odd()), shaped(3, 5))
        assert found.capture.judge is not None
        (unknown,) = found.capture.judge.unknown_ops
        assert unknown.op == "judged_odd.fused"
        assert unknown.why.startswith(said)
        judges = found.discrepancy.judges
        assert judges is not None
        assert judges.operators == ("aten.mm",)
        assert said in judges.alone[0]
    finally:
        del flop_registry[packet]
        library._destroy()
