"""The second judge: torch's own formulas at the dispatcher. Every expected number is worked out beside the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import chain
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import costproof
from costproof.models.specs import Run
from costproof.tracers.flop_counter_ledger import DispatchedFlops, flop_counter_ledger, sum_steps
from costproof.tracers.hooks import trace_hooks
from tests.support.opcalls import counted, taken

aten = torch.ops.aten


class Runs(nn.Module):
    """Runs a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, **tensors: torch.Tensor) -> Any:
        """What the function returns."""
        return self.function(**tensors)


def seen(function: Callable[..., Any], device: str = "meta", /, **tensors: torch.Tensor) -> DispatchedFlops:
    run = Run("run", Runs(function), {k: t.to(device) for k, t in tensors.items()}, lambda path, call: ("all", "once"))
    return trace_hooks(run).judged


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


A, B = ones(3, 5), ones(5, 7)
CUBE = ones(4, 3, 5)


@pytest.mark.parametrize(
    ("function", "tensors", "expected"),
    [
        # Linear with a bias: 2 numbers in, 3 out, 4 rows.
        (lambda x, w, b: torch.nn.functional.linear(x, w, b), {"x": ones(4, 2), "w": ones(3, 2), "b": ones(3)}, 48),
        (lambda x, y: x @ y, {"x": A, "y": B}, 2 * 3 * 5 * 7),
        (lambda x, y: x @ y, {"x": A, "y": ones(5)}, 2 * 3 * 5),
        (lambda x, y: x @ y, {"x": ones(5), "y": ones(5)}, 2 * 5),
        (lambda x, y: torch.addmv(ones(3).to(x.device), x, y), {"x": A, "y": ones(5)}, 2 * 3 * 5),
        (lambda c, x, y: c.clone().addmm_(x, y), {"c": ones(3, 7), "x": A, "y": B}, 2 * 3 * 5 * 7),
        # Two coordinates of 4 x 5 places, each a sum over (x, y, 1), in 2 images.
        (
            lambda x: torch.nn.functional.affine_grid(x, [2, 1, 4, 5], align_corners=False),
            {"x": ones(2, 2, 3)}, 2 * 2 * 4 * 5 * 2 * 3,
        ),
        # 4 products of 3x5 with 5x7, added.
        (lambda c, x, y: torch.addbmm(c, x, y), {"c": ones(3, 7), "x": CUBE, "y": ones(4, 5, 7)}, 4 * 2 * 3 * 5 * 7),
        # A multiplication of complex numbers is four of real ones.
        (lambda x, y: x @ y, {"x": A.to(torch.complex64), "y": B.to(torch.complex64)}, 8 * 3 * 5 * 7),
        # Complex weights do not hide pairs.
        (
            lambda x, y: (x.abs().softmax(-1).to(y.dtype) @ y).real,
            {"x": A.to(torch.complex64), "y": B.to(torch.complex64)}, 8 * 3 * 5 * 7,
        ),
        # 6 channels in 2 groups, 4 out, taps 3 apart by 2, 9 + 2 * 2 positions: 13 - 4 = 9 outputs of 4 channels.
        (
            lambda x, w: torch.nn.functional.conv1d(x, w, padding=2, dilation=2, groups=2),
            {"x": ones(1, 6, 9), "w": ones(4, 3, 3)}, 2 * 9 * 4 * 3 * 3,
        ),
        # Every one of 5 inputs of 6 channels is spread over 3 taps of the 2 outputs of its group of 2.
        (
            lambda x, w: torch.nn.functional.conv_transpose1d(x, w, stride=2, groups=2),
            {"x": ones(1, 6, 5), "w": ones(6, 2, 3)}, 2 * 5 * 6 * 2 * 3,
        ),
        # A complex product is four real ones, where torch computes three: 7 outputs of 5 channels, 4 channels, 3 taps.
        (
            lambda x, w: torch.nn.functional.conv1d(x, w).real,
            {"x": ones(1, 4, 9, dtype=torch.cfloat), "w": ones(5, 4, 3, dtype=torch.cfloat)}, 4 * 2 * 7 * 5 * 4 * 3,
        ),
        (
            lambda x, w: torch.conv_transpose1d(x, w, groups=2).real,
            {"x": ones(1, 6, 5, dtype=torch.cfloat), "w": ones(6, 2, 3, dtype=torch.cfloat)}, 4 * 2 * 5 * 6 * 2 * 3,
        ),
        # Pairs of einsum that torch multiplies number by number: 3 x 5 x 7 of them, none summed; 3 x 5 kept.
        (lambda x, y: torch.einsum("ab,bc->abc", x, y), {"x": A, "y": B}, 2 * 3 * 5 * 7),
        (lambda x, y: torch.einsum("ab,cb->abc", x, y), {"x": ones(3, 1), "y": ones(7, 1)}, 2 * 3 * 7),
        # The 7 x 5 numbers of y are summed to 5, each of which meets 3.
        (lambda x, y: torch.einsum("ab,bc->ac", x, y), {"x": ones(3, 1), "y": ones(7, 5)}, 2 * 3 * 5),
        (lambda x, y: torch.einsum("...b,b", x, y), {"x": CUBE, "y": ones(5)}, 2 * 4 * 3 * 5),
        (lambda x, y: torch.einsum("...a,a->...a", x, y), {"x": CUBE, "y": ones(5)}, 2 * 4 * 3 * 5),
        # 2 rows in the first group, 4 in the second, each with a 5x7 matrix.
        (
            lambda x, y, o: torch._grouped_mm(x, y, offs=o),
            {"x": ones(6, 8, dtype=torch.bfloat16), "y": ones(2, 8, 16, dtype=torch.bfloat16),
             "o": torch.tensor([2, 6], dtype=torch.int32)},
            2 * 6 * 8 * 16,
        ),
        # Inner dimension in groups of 8 and 16.
        (
            lambda x, y, o: torch._grouped_mm(x, y, offs=o),
            {"x": ones(8, 24, dtype=torch.bfloat16), "y": ones(24, 16, dtype=torch.bfloat16),
             "o": torch.tensor([8, 24], dtype=torch.int32)},
            2 * 8 * 24 * 16,
        ),
    ],
)  # fmt: skip
def test_products(function: Callable[..., Any], tensors: dict[str, torch.Tensor], expected: int) -> None:
    assert seen(function, "meta", **tensors).flops.total() == expected


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("grouped", [False, True])
def test_attention_on_either_device(device: str, grouped: bool) -> None:
    # 4 heads of 3 queries and 5 keys in 2 batches: 8 wide for the scores, 8 for the values; causal changes nothing.
    keys = ones(2, 2 if grouped else 4, 5, 8)
    found = seen(
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped),
        device, q=ones(2, 4, 3, 8), k=keys, v=keys,
    )  # fmt: skip
    assert found.flops.total() == 2 * 2 * 4 * 3 * 5 * (8 + 8)


def test_elementwise_work_and_norms_are_no_products() -> None:
    assert not seen(lambda x: torch.nn.functional.layer_norm(x * x + x.exp(), (5,)).softmax(-1), x=A).flops


def test_norms_of_torch_linalg_are_vector_work() -> None:
    assert not seen(lambda x: torch.linalg.vector_norm(x), "cpu", x=A).unjudged


def test_operators_that_nobody_has_a_formula_for_are_named() -> None:
    found = seen(lambda x: torch.linalg.inv(x), "cpu", x=torch.eye(3))
    assert {name for _, name in found.unjudged} == {"aten.linalg_inv_ex"}


class Three(nn.Module):
    """An einsum of three tensors, two of them parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.c = nn.Parameter(ones(9, 8)), nn.Parameter(ones(8))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """[10, 9] -> [10]."""
        return torch.einsum("ij,jk,k->i", a, self.b, self.c)


@pytest.mark.parametrize("ordered", [False, True])
def test_an_einsum_of_three_as_the_package_orders_it(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        @staticmethod
        def contract_path(*args: Any, optimize: Any) -> Any:
            return [(1, 2), (0, 1)], "what it says about it"

    module: Any = torch.backends.opt_einsum
    monkeypatch.setattr(module.m, "enabled", ordered)
    monkeypatch.setattr(module.m, "is_available", lambda: True)
    monkeypatch.setattr(module.m, "get_opt_einsum", lambda: Package)
    found = costproof.count(Three(), ones(10, 9))
    # b with c, 9 * 8 products, then a with these, 10 * 9; else a with b, 10 * 9 * 8, then these with c, 10 * 8.
    expected = 2 * (72 + 90) if ordered else 2 * (720 + 80)
    assert found.discrepancy.verdict == "exact"
    assert [ledger.total("flops") for ledger in found.capture.ledgers] == [expected, expected]
    assert found.discrepancy.judges is not None
    assert (found.discrepancy.judges.flops, found.discrepancy.judges.alone) == (expected, ())


@settings(max_examples=100)
@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=3, unique=True), min_size=2, max_size=4),
    st.lists(st.integers(1, 3), min_size=4, max_size=4), st.sets(st.sampled_from("abcd")), st.randoms(), st.booleans(),
)  # fmt: skip
def test_einsums_of_any_order_are_what_the_rules_say(
    terms: list[list[str]], drawn: list[int], wanted: set[str], order: Random, ordered: bool
) -> None:
    sizes = dict(zip("abcd", drawn, strict=True))
    equation = ",".join(map("".join, terms)) + "->" + "".join(sorted(wanted.intersection(chain(*terms))))
    operands = [torch.empty([sizes[i] for i in term], device="meta") for term in terms]
    steps = [order.sample(range(n), 2) for n in range(len(terms), 1, -1)]
    path = [place for step in steps for place in step] if ordered else None
    functions: Any = torch._VF
    judged = seen(lambda: functions.einsum(equation, operands, path=path))
    op, _ = taken(aten.einsum.default, equation, operands, path=path)
    assert (judged.flops.total(), judged.unjudged.total()) == (counted(op).flops, 0)


@torch.jit.script
def gram(x: torch.Tensor) -> torch.Tensor:
    """A product that no tracer in Python sees."""
    return x @ x.transpose(0, 1)


class Gram(nn.Module):
    """Calls a TorchScript function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 5] -> [n, n]."""
        found: torch.Tensor = gram(x)
        return found


class Two(nn.Module):
    """A linear layer called twice, and a product in TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.gram = nn.Linear(5, 5, bias=False), Gram()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3, 5] -> [3, 3]."""
        found: torch.Tensor = self.gram(self.fc(self.fc(x)))
        return found


def test_a_product_in_torchscript_has_its_module_and_a_repeated_call_its_invocation() -> None:
    run = Run("run", Two(), {"x": A}, lambda path, call: ("all", f"call {call}"))
    assert trace_hooks(run).judged.placed(run) == {
        ("all", "call 1", "fc", "aten.mm"): 2 * 3 * 5 * 5,
        ("all", "call 2", "fc", "aten.mm"): 2 * 3 * 5 * 5,
        ("all", "call 1", "gram", "aten.mm"): 2 * 3 * 5 * 3,
    }


def test_whoever_hands_numbers_to_numpy_is_noted() -> None:
    def through_numpy(x: torch.Tensor) -> torch.Tensor:
        import numpy

        return torch.from_numpy(numpy.asarray(x) @ numpy.ones((5, 2), "float32")) * len((x > 0).numpy())

    found = seen(through_numpy, "cpu", x=A)
    run = Run("run", nn.Identity(), {}, lambda path, call: ("all", "once"))
    assert found.gone(run) == {("all", ""): 1}  # a mask of true and false is not numbers


def test_torch_is_left_as_it_was() -> None:
    own = ("numpy", "__dlpack__")
    before = [vars(torch.Tensor).get(name) for name in own], "einsum" in vars(torch._VF)

    def fails(x: torch.Tensor) -> None:
        raise RuntimeError

    for function in (torch.relu, fails):
        with contextlib.suppress(RuntimeError):
            seen(lambda x, function=function: function(x), x=A)
        assert ([vars(torch.Tensor).get(name) for name in own], "einsum" in vars(torch._VF)) == before


def test_sums_over_steps() -> None:
    # Three steps of four traced: 10, 12, 14, 16; then one off the line, and one missing at the end.
    assert sum_steps({7: 10, 8: 12, 10: 16}, 4) == 52
    assert sum_steps({7: 10, 8: 12}, 2) == 22
    assert sum_steps({7: 10, 8: 13, 10: 16}, 4) is None
    assert sum_steps({7: 10, 8: 12, 9: 14}, 4) is None
    # Not a whole number between: 1, 1 1/2, 2 add up to 4 1/2.
    assert sum_steps({7: 1, 9: 2}, 3) is None


def test_the_ledger_adds_calls_and_steps() -> None:
    head = ("late", "steps", "head", "aten.mm", "flops")
    ledger = flop_counter_ledger(
        [(None, {("first", "once", "fc", "aten.mm", "flops"): 5}), (3, {head: 2}), (4, {head: 3})], 2, (), ()
    )
    assert {n.id: n.costs["flops"] for n in ledger.nodes} == {
        "first[once]/fc:aten.mm": 5, "late[steps]/head:aten.mm": 5,
    }  # fmt: skip


def test_experts_one_by_one() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, n, bias=False) for n in (4, 4, 6))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [self.experts[i](x) for i in (1, 2)]

    moe = Mixture()
    rows = {"experts": (0, 3, 3)}
    run = Run("run", moe, {"x": ones(3, 4)}, lambda p, c: ("all", "once"), expert_tokens=rows, groups=["experts"])
    judged = trace_hooks(run).judged
    assert judged.of_experts(run) == {"experts": (0, 2 * 3 * 4 * 4, 2 * 3 * 4 * 6)}
    assert judged.placed(run) == {("all", "once", "experts", "aten.mm"): 2 * 3 * 4 * 10}


def test_a_wrong_rule_is_found_where_both_graph_sources_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from costproof.opgraph.rules import matmul
    from costproof.opgraph.rules.registry import registered

    registered()  # modules that are loaded while the rule is wrong would keep it
    monkeypatch.setattr(matmul, "mac", lambda op: 4)
    found = costproof.count(nn.Sequential(nn.Linear(5, 7), nn.ReLU()), torch.empty(3, 5, device="meta")).discrepancy
    (bad,) = found.select(status="unexplained")
    assert (bad.id, bad.values) == ("judge/forward[forward]/0:linear#flops", {"dynamic": 420, "dispatcher": 210})
    assert found.verdict == "unexplained"
    assert bad.causes[0].note == "torch's own formulas count aten.addmm 210 in the same calls"
