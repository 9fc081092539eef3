"""Bytes of layers whose operators run on their own, by hand: what each reads and writes, added up beside it."""

from __future__ import annotations

from typing import ClassVar

import pytest

from costproof.analytic.attention import Attention, NoBias
from costproof.analytic.compose import ModulePart, analytic_ledger, invocation_nodes, stage_nodes
from costproof.analytic.costs import Layer, LayerCosts, layer
from costproof.analytic.elementwise import Activation, Residual, SoftCap
from costproof.analytic.embedding import FeaturesInPrompt
from costproof.analytic.experts import ExpertLoop, Experts, LoopedExperts, Router, RoutingRule
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.linear import Linear
from costproof.analytic.norms import CentredRmsNorm, LayerNorm, LayerNorm2d, RmsNorm, WideRmsNorm
from costproof.analytic.rotary import Rotary, RotaryAxes, RotaryPairs, RotaryProduct, RotaryTable
from costproof.ledger.metrics import TRAFFIC
from costproof.models.families.deepseek_ocr.formulas import PageInPlace
from costproof.models.registry import load_target
from costproof.models.target import WithFormulas
from costproof.parametric.targets import evaluate_formulas as evaluated

# Elements of bfloat16 weigh 2 bytes, those of float32 weigh 4. Of a norm 12 elements in 3 rows.
BFLOAT16 = [
    ("one operator", LayerNorm(3, 4, 2), 24 + 16 + 24),
    # x² (written in float32), its mean, + eps, root; x times root, in bfloat16; times w
    ("rms norm", RmsNorm(3, 4, 2), (24 + 48) + (48 + 12) + (12 + 12) + (12 + 12) + (24 + 12 + 24) + (24 + 8 + 24)),
    # the same, but what the root makes stays float32
    ("rms norm, float32", WideRmsNorm(3, 4, 2), (24 + 48) + (48 + 12) + 24 + 24 + (24 + 12 + 48) + (48 + 8 + 24)),
    # and 1 + w in float32
    (
        "rms norm around 0",
        CentredRmsNorm(3, 4, 2),
        (24 + 48) + (48 + 12) + 24 + 24 + (24 + 12 + 48) + (8 + 16) + (48 + 16 + 24),
    ),
    # mean, x - mean, square, mean, x - mean, + eps, root, quotient, times w, + c
    (
        "norm over channels",
        LayerNorm2d(3, 4, 2),
        (24 + 6) + (24 + 6 + 24) + 48 + (24 + 6) + (24 + 6 + 24) + 12 + 12 + (24 + 6 + 24) + (24 + 8 + 24) * 2,
    ),
    # 1.702 x, sigmoid, x times it
    ("quick gelu", Activation(10, "quick_gelu", 2), 40 + 40 + 60),
    # a quotient, tanh, a product
    ("soft cap", SoftCap(5, 2), 20 + 20 + 20),
    # 3 rows of 4 joined, then written over places of 5
    ("features into a prompt", FeaturesInPrompt(3, 5, 4, 2), (24 + 24) + (24 + 40 + 40)),
    ("features that nobody else gets", FeaturesInPrompt(3, 5, 4, 2, returned=False), (24 + 24) + (24 + 40 + 40)),
    # Of 2 positions of 4 elements 3 * 4 angles; cos, scaled, a third of them joined, doubled to bfloat16; so is sin
    (
        "cosines and sines on three axes",
        RotaryAxes(2, 4, 2),
        (8 + 48) + 2 * ((48 + 48) + (48 + 48) + (16 + 16) + (16 + 16)),
    ),
    # x + a, + b: three tensors each
    ("residual", Residual(10, 2, 2), 60 + 60),
    # q 12, k 12 and v 12 elements, 2 heads x 2 x 2 = 8 scores; one kernel
    ("attention, one kernel", Attention(1, 2, 2, 2, 3, 2), 4 * 24),
    # Q K, scale, mask of 4, softmax, times V
    (
        "attention, written out",
        Attention(1, 2, 2, 2, 3, 2, bias="input", written_out=True),
        (48 + 16) + (16 + 16) + (16 + 8 + 16) + (16 + 16) + (16 + 24 + 24),
    ),
    # a step with 3 in the cache, 1 new: keys of 4 rows of 6 are joined, and values; then attention; 12 are appended
    (
        "attention with a cache",
        Attention(1, 1, 2, 2, 3, 2, past=3, cached=True),
        2 * (36 + 12 + 48) + 12 + 96 + 12 + 24,
    ),
    # with 4 sinks' scores joined to 8: joined 8 + 2 -> 12, greatest 12 -> 4, taken off, softmax, then 8 of them
    (
        "attention with sinks",
        Attention(1, 2, 2, 2, 3, 2, sinks=True, written_out=True),
        (48 + 16) + 32 + (16 + 4 + 24) + (24 + 8) + (24 + 8 + 24) + 48 + (16 + 24 + 24),
    ),
    # q and k of 8: x cos, -half, both halves, times sin, sum; cos and sin are 8 each
    ("rotation", Rotary(1, 2, 1, 1, 4, 2), 2 * ((16 + 16 + 16) + 16 + 32 + (16 + 16 + 16) + 48)),
    # four products of halves with half a table, difference, sum, both joined
    ("rotation of pairs", RotaryPairs(1, 2, 1, 1, 4, 2), 2 * (4 * (8 + 8 + 8) + 24 + 24 + 32)),
    # 2 x 2 angles from 2 frequencies, doubled; cos, its scale, sin, its scale, in float32 until the last
    ("rotary table", RotaryTable(2, 4, 2), (8 + 16) + (16 + 32) + 64 + (32 + 16) + 64 + (32 + 16)),
    # 3 tokens of 4, 8 experts: logits of 24 in float32, softmax, 2 best of each, their scale
    ("router", Router(3, 4, 8, 2, 2), (24 + 64 + 96) + 192 + (96 + 24) + 48),
    # logits in bfloat16; the 2 best are divided by their sum
    (
        "router, divided",
        Router(3, 4, 8, 2, 2, RoutingRule(normalised=True, scaled=False, upcast=False)),
        (24 + 64 + 48) + (48 + 96) + (96 + 24) + (24 + 12) + (24 + 12 + 24),
    ),
    # 2 tokens of 4, both experts each: 4 rows, inner 3. Sorted rows, weights; up to 6; times the activation of 3; down;
    # weighted in float32, sorted back, summed. The weights: 2 experts x 36.
    (
        "experts, sorted",
        Experts(2, 4, 3, 2, 2, 2),
        (16 + 32) + 32 + (32 + 48) + (24 + 24 + 24) + (24 + 32) + (32 + 16 + 64) + 128 + (64 + 16) + 144,
    ),
    # in place of sorting, 36 weights are gathered for each of the 4 rows
    (
        "experts, gathered",
        Experts(2, 4, 3, 2, 2, 2, batched=True),
        (16 + 32) + 288 + (288 + 32 + 48) + (24 + 24 + 24) + (24 + 32) + (32 + 16 + 64) + (64 + 16) + 144,
    ),
    # 3 tokens of 4, 2 experts each: 6 rows of 4. Sorted copies; results joined; a tensor for them, which is read, and
    # written with them; times 6 weights in float32; the sum of two rows; plus the shared experts' result
    (
        "loop over experts",
        ExpertLoop(3, 4, 2, 2),
        (24 + 48) + (48 + 48) + 48 + (48 + 48 + 48) + (48 + 24 + 96) + (96 + 24) + (24 + 24 + 24),
    ),
    (
        "loop over experts, none shared",
        ExpertLoop(3, 4, 2, 2, shared=False),
        (24 + 48) + (48 + 48) + 48 + (48 + 48 + 48) + (48 + 24 + 96) + (96 + 24),
    ),
    # 2 experts of 3 * 12 weights, 6 rows of 4: gate, up, activation, product, down
    (
        "experts, a module each",
        LoopedExperts(3, 4, 3, 2, 2, 2),
        144 + (48 + 36) + (48 + 36) + (36 + 36) + (36 + 36 + 36) + (36 + 48),
    ),
    # 100 pixels summed; towers of 3 and 2 joined for 1 + 4 features; a row and a newline, two rows of two and a
    # newline; these 2 + 6 and a separator; all 9 copied; and written over a prompt of 11 of 4; a mask of 11 x 11
    (
        "page in place",
        PageInPlace(11, 4, 2, 100, 5, 3, 2, 9, 2),
        200 + (50 + 50) + (8 + 8 + 16) + (32 + 8 + 48) + (64 + 8 + 72) + 144 + (88 + 72 + 88) + 484 + (484 + 242),
    ),
    ("a prompt without a page", PageInPlace(11, 4, 2, 100), 200 + 484 + (484 + 242)),
    # two frequencies times 2 positions; the rest as of the table above
    ("rotary table by a product", RotaryProduct(2, 4, 2), (8 + 16) + (16 + 32) + 64 + (32 + 16) + 64 + (32 + 16)),
    # 2 heads of 3 x 5 zeros, written and read, whether another layer reads them too or not
    ("zeros as biases", NoBias(2, 3, 5, 2), 60 + 60),
    ("zeros as biases of the last layer", NoBias(2, 3, 5, 2, passed_on=False), 60 + 60),
]


@pytest.mark.parametrize(("layer", "expected"), [c[1:] for c in BFLOAT16], ids=[c[0] for c in BFLOAT16])
def test_operators_on_their_own(layer: Layer, expected: int) -> None:
    assert layer.costs().unfused_bytes == expected


def unfused(parts: tuple[ModulePart, ...]) -> dict[str, str]:
    """Role -> bytes, of all that say them."""
    names = {part.role: part.role for part in parts}
    ledger = analytic_ledger(invocation_nodes("s", "i", parts, names), ("s",))
    assert "unfused_bytes" in ledger.metrics
    return {n.role: n.exprs["unfused_bytes"] for n in ledger.nodes if "unfused_bytes" in n.exprs}


def test_an_mlp() -> None:
    # 5 rows of 8 to 12 and back: 40 and 60 elements, weights 96; down(silu(gate(x)) * up(x)).
    found = unfused(Mlp(8, 12, "silu", gated=True, bias=False).parts("mlp", 5, 2))
    assert found == {
        "mlp": str(3 * 120),
        "mlp.gate": str(80 + 192 + 120),
        "mlp.up": str(80 + 192 + 120),
        "mlp.activation": str(240),
        "mlp.down": str(120 + 192 + 80),
    }


@layer
class _Silent:
    """A layer of several operators that does not say what they move among themselves."""

    name: ClassVar[str] = "test_silent"
    title: ClassVar[str] = "Silent"
    source: ClassVar[str] = "this test"

    def costs(self) -> LayerCosts:
        """Something comes in."""
        return LayerCosts(input_bytes=8)


@layer
class _SilentOwner:
    """A layer that owns parameters and does not say how many bytes they are."""

    name: ClassVar[str] = "test_silent_owner"
    title: ClassVar[str] = "Silent owner"
    source: ClassVar[str] = "this test"

    def costs(self) -> LayerCosts:
        """Nine parameters."""
        return LayerCosts(params=9)


def test_half_a_stage_does_not_pass_for_a_whole_one() -> None:
    parts = (
        ModulePart("a", (Linear(1, 2, 3, 2),)),
        ModulePart("b", (_Silent(),)),
        ModulePart("c", (_Silent(), Linear(1, 2, 3, 2))),
    )
    nodes = tuple(invocation_nodes("s", "i", parts, {"a": "a", "b": "b", "c": "c"}))
    ledger = analytic_ledger(nodes, ("s",))
    assert "unfused_bytes" not in ledger.metrics
    for metric in ("unfused_bytes", "floor_bytes", "output_bytes", "weight_read_bytes"):
        assert not any(metric in (n.exprs.keys() | n.costs.keys()) for n in ledger.nodes)
        assert ledger.total(metric) is None
    assert {"input_bytes", "flops"} <= set(ledger.metrics)


def test_bytes_of_parameters_that_a_layer_does_not_give_are_unknown() -> None:
    part = ModulePart("a", (_SilentOwner(), Linear(1, 2, 3, 2)))
    ledger = analytic_ledger(tuple(stage_nodes("s", (part,), {"a": "a"})), ("s",))
    assert not {"weight_bytes", "buffer_bytes"} & set(ledger.metrics)
    assert [node.exprs["params"] for node in ledger.nodes] == ["18"]  # 9 of its own, and 2 x 3 + 3 of the linear layer
    assert LayerCosts(intermediate_bytes=0).unknown == frozenset()
    unsaid = {"buffer_bytes", "weight_read_bytes", "input_bytes", "output_bytes", "unfused_bytes"}
    assert LayerCosts(weight_bytes=1).unknown == unsaid


@pytest.mark.parametrize(
    "name", ["deepseek-ocr", "llama", "deepseek-v3", "gpt-oss", "gemma3", "t5", "bert", "siglip-vision"]
)
def test_a_larger_region_moves_no_more(name: str) -> None:
    target = load_target(name)
    assert isinstance(target, WithFormulas)
    ledger = evaluated(target, target.workload())
    for stage in ledger.stages:
        fused = [ledger.stage_total(stage, metric) or 0 for metric in TRAFFIC]
        assert 0 < sum(fused) <= (ledger.stage_total(stage, "unfused_bytes") or 0)
