"""Every layer against arithmetic done by hand, written out beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from costproof.analytic.attention import Attention
from costproof.analytic.compose import Container
from costproof.analytic.costs import Layer
from costproof.analytic.elementwise import Activation, GatedProduct, Residual, SoftCap
from costproof.analytic.embedding import ClassAndPositions, Embedding, LearnedPositions, PositionEmbedding
from costproof.analytic.experts import Experts, Router, RoutingRule
from costproof.analytic.linear import Linear, LmHead
from costproof.analytic.norms import CentredRmsNorm, LayerNorm, RmsNorm
from costproof.analytic.patches import Conv2d, PatchEmbedding
from costproof.analytic.rotary import Rotary, RotaryTable
from costproof.ledger.errors import BadInput
from costproof.models.families.deepseek_ocr.formulas import FeatureConcat, ImageTokens, vision_tokens
from costproof.models.pages.formulas import RelativePosition, WindowPartition, windows_per_side


@dataclass(frozen=True)
class Expected:
    """Every metric of a layer; what is not said is zero. Weights weigh 2 bytes, as in all cases here."""

    params: int = 0
    read: int = 0
    flops: dict[str, int] = field(default_factory=dict)
    vector: dict[str, int] = field(default_factory=dict)
    incoming: int = 0
    outgoing: int = 0
    past: int = 0
    """Bytes read from the cache."""
    cache: int = 0
    buffers: int = 0
    active: int | None = None


CASES: list[tuple[str, Layer, Expected]] = [
    (
        "linear",
        Linear(rows=3, features_in=4, features_out=5, item_bytes=2),
        # 4*5 weights + 5 biases = 25, 2 bytes each; 3*5 results of 4 MACs: 60 MACs; 12 in, 15 out
        Expected(params=25, read=50, flops={"linear": 120}, incoming=24, outgoing=30),
    ),
    (
        "linear without bias",
        Linear(rows=3, features_in=4, features_out=5, item_bytes=2, bias=False),
        Expected(params=20, read=40, flops={"linear": 120}, incoming=24, outgoing=30),
    ),
    (
        "lm_head on 2 x 3 positions",
        LmHead(batch=2, positions=3, hidden=4, vocabulary=7, item_bytes=2),
        # 28 weights; 6*7 = 42 results of 4 MACs = 168 MACs; 6*4 = 24 in, 42 out
        Expected(params=28, read=56, flops={"linear": 336}, incoming=48, outgoing=84),
    ),
    (
        "lm_head that reads the embedding's table",
        LmHead(batch=2, positions=3, hidden=4, vocabulary=7, item_bytes=2, tied=True),
        # the table is owned elsewhere, and read whole: 28 elements
        Expected(read=56, flops={"linear": 336}, incoming=48, outgoing=84),
    ),
    (
        "conv2d, 3 x 2 on 8 x 6",
        Conv2d(2, 3, 4, kernel=(3, 2), side_in=(8, 6), side_out=(4, 5), item_bytes=2, bias=False),
        # 3 channels * 6 taps = 18; 4*18 weights; 2*4*20 = 160 results, 2880 MACs; in 2*3*48 = 288
        Expected(params=72, read=144, flops={"conv2d": 5760}, incoming=576, outgoing=320),
    ),
    (
        "conv2d, stride 2, two groups",
        Conv2d(
            batch=2, channels_in=4, channels_out=6, kernel=3, side_in=8, side_out=4, item_bytes=2, bias=True, groups=2
        ),
        # a result sees 4/2 channels * 9 taps = 18; 6*18 weights + 6 biases = 114; 2*6*16 = 192 results
        # 192*18 = 3456 MACs; in 2*4*64 = 512
        Expected(params=114, read=228, flops={"conv2d": 6912}, incoming=1024, outgoing=384),
    ),
    (
        "patch embedding",
        PatchEmbedding(views=2, channels=3, hidden=5, patch=4, side=8, grid=2, item_bytes=2),
        # a patch has 3*16 = 48 numbers; 5*48 + 5 = 245; 2*4*5 = 40 results, 40*48 = 1920 MACs; in 2*3*64 = 384
        Expected(params=245, read=490, flops={"conv2d": 3840}, incoming=768, outgoing=80),
    ),
    (
        "patch embedding of 8 x 12 in patches of 4 x 3",
        PatchEmbedding(views=2, channels=3, hidden=5, patch=(4, 3), side=(8, 12), grid=(2, 4), item_bytes=2),
        # a patch has 3*12 = 36 numbers; 5*36 + 5 = 185; 2*8*5 = 80 results, 2880 MACs; in 2*3*96 = 576
        Expected(params=185, read=370, flops={"conv2d": 5760}, incoming=1152, outgoing=160),
    ),
    (
        "layer norm",
        LayerNorm(rows=3, width=4, item_bytes=2),
        # 7*12 + 2*3 = 90
        Expected(params=8, read=16, vector={"norm": 90}, incoming=24, outgoing=24),
    ),
    (
        "rms norm",
        RmsNorm(rows=3, width=4, item_bytes=2),
        # 4*12 + 2*3 = 54
        Expected(params=4, read=8, vector={"norm": 54}, incoming=24, outgoing=24),
    ),
    ("gelu", Activation(10, "gelu", 2), Expected(vector={"activation": 50}, incoming=20, outgoing=20)),
    ("quick gelu", Activation(10, "quick_gelu", 2), Expected(vector={"activation": 30}, incoming=20, outgoing=20)),
    ("silu", Activation(10, "silu", 2), Expected(vector={"activation": 20}, incoming=20, outgoing=20)),
    ("relu", Activation(10, "relu", 2), Expected(vector={"activation": 10}, incoming=20, outgoing=20)),
    # the cube, its product with 0.044715, the sum, its product with the root, tanh, 1 +, 0.5 x, the product
    ("gelu_new", Activation(10, "gelu_new", 2), Expected(vector={"activation": 80}, incoming=20, outgoing=20)),
    (
        "gelu with tanh, fused",
        Activation(10, "gelu_pytorch_tanh", 2),
        Expected(vector={"activation": 80}, incoming=20, outgoing=20),
    ),
    ("gate", GatedProduct(10, 2), Expected(vector={"elementwise": 10}, incoming=40, outgoing=20)),
    # x + a = y, y + b = z: 20 additions; x, a, b in, y and z out
    ("residual", Residual(10, 2, 2), Expected(vector={"elementwise": 20}, incoming=60, outgoing=40)),
    ("sum of two", Residual(10, 1, 2), Expected(vector={"elementwise": 10}, incoming=40, outgoing=20)),
    # n(x + a) = y, y + b: x, a, y and b in
    (
        "residual, normed between",
        Residual(10, 2, 2, chained=False),
        Expected(vector={"elementwise": 20}, incoming=80, outgoing=40),
    ),
    ("container", Container(), Expected()),
    # 3 of 7 rows of 4
    ("embedding", Embedding(rows=3, entries=7, width=4, item_bytes=2), Expected(params=28, read=24, outgoing=24)),
    (
        "attention, prefill, grouped queries, cached",
        Attention(batch=2, queries=3, heads=4, kv_heads=2, head_dim=5, item_bytes=2, cached=True),
        # scores 2*4*3*3 = 72, each 5 MACs in QK and 5 in PV: 720 MACs; softmax 5*72; scale 72
        # q 2*3*4*5 = 120, k and v 2*3*2*5 = 60 each: 240 in; 120 out; the cache gets 120
        Expected(
            flops={"attention": 1440},
            vector={"softmax": 360, "elementwise": 72},
            incoming=480,
            outgoing=240,
            cache=240,
        ),
    ),
    (
        "attention, decode step at 6 with a mask",
        Attention(batch=2, queries=1, heads=4, kv_heads=2, head_dim=5, item_bytes=2, past=6, cached=True, bias="input"),
        # scores 2*4*1*7 = 56, 560 MACs; softmax 280; scale 56 and mask 56
        # q 40, k and v 20 each, mask 2*1*7 = 14: 40 + 40 + 14 = 94; past k and v 2*6*2*5 = 120 each
        Expected(
            flops={"attention": 1120},
            vector={"softmax": 280, "elementwise": 112},
            incoming=188,
            outgoing=80,
            past=480,
            cache=80,
        ),
    ),
    (
        "attention, scaled queries, bias made inside",
        Attention(batch=2, queries=3, heads=4, kv_heads=4, head_dim=5, item_bytes=2, bias="inside", scaled="queries"),
        # 120 queries scaled, 72 scores biased; 3*120 in
        Expected(flops={"attention": 1440}, vector={"softmax": 360, "elementwise": 192}, incoming=720, outgoing=240),
    ),
    (
        "attention, values of another width",
        Attention(batch=2, queries=3, heads=4, kv_heads=2, head_dim=5, item_bytes=2, cached=True, value_dim=7),
        # 72 scores of 5 MACs, weighing rows of 7: 864 MACs; softmax 360, scale 72
        # q 120, k 60, v 2*3*2*7 = 84: 264 in; 2*3*4*7 = 168 out; the cache gets 144
        Expected(
            flops={"attention": 1728},
            vector={"softmax": 360, "elementwise": 72},
            incoming=528,
            outgoing=336,
            cache=288,
        ),
    ),
    (
        "cross attention, first call",
        Attention(batch=2, queries=3, heads=4, kv_heads=4, head_dim=5, item_bytes=2, cached=True, new_keys=6),
        # scores 2*4*3*6 = 144, 1440 MACs; softmax 720, scale 144; q 120, k and v 2*6*4*5 = 240 each
        Expected(
            flops={"attention": 2880},
            vector={"softmax": 720, "elementwise": 144},
            incoming=1200,
            outgoing=240,
            cache=960,
        ),
    ),
    (
        "cross attention, a later step",
        Attention(batch=2, queries=1, heads=4, kv_heads=4, head_dim=5, item_bytes=2, past=6, cached=True, new_keys=0),
        # scores 2*4*1*6 = 48, 480 MACs; q 40, k and v of the cache 240 each; nothing new
        Expected(
            flops={"attention": 960}, vector={"softmax": 240, "elementwise": 48}, incoming=80, outgoing=80, past=960
        ),
    ),
    (
        "attention, a step with a full window of 4",
        Attention(batch=2, queries=1, heads=4, kv_heads=2, head_dim=5, item_bytes=2, past=9, cached=True, window=4),
        # 3 of the 9 and the new key: scores 2*4*4 = 32, 320 MACs; q 40, new k and v 40, cached 2*(2*3*2*5) = 120;
        # the cache holds 3 before and after
        Expected(
            flops={"attention": 640}, vector={"softmax": 160, "elementwise": 32}, incoming=160, outgoing=80, past=240
        ),
    ),
    (
        "attention, a prompt beyond its window of 4, masked",
        Attention(2, 6, 4, 2, 5, item_bytes=2, cached=True, window=4, bias="boolean"),
        # scores 2*4*6*6 = 288, 2880 MACs, a mask that is no activation; q 240, k and v 240; 3 keys and values stay
        Expected(
            flops={"attention": 5760},
            vector={"softmax": 1440, "elementwise": 576},
            incoming=960,
            outgoing=480,
            cache=240,
        ),
    ),
    (
        "attention, scores capped",
        Attention(batch=1, queries=2, heads=1, kv_heads=1, head_dim=3, item_bytes=2, capped=True),
        # 4 scores of 3 MACs twice; scale and cap 4*(1 + 3); q, k, v 6 each
        Expected(flops={"attention": 48}, vector={"softmax": 20, "elementwise": 16}, incoming=36, outgoing=12),
    ),
    (
        "rms norm with weights around 0",
        CentredRmsNorm(rows=3, width=4, item_bytes=2),
        # 4*12 + 2*3 = 54, and 1 + w: 4
        Expected(params=4, read=8, vector={"norm": 54, "elementwise": 4}, incoming=24, outgoing=24),
    ),
    (
        "embedding, scaled",
        Embedding(rows=3, entries=7, width=4, item_bytes=2, scaled=True),
        # the scale is a buffer of one element
        Expected(params=28, read=24, vector={"elementwise": 12}, incoming=2, outgoing=24, buffers=2),
    ),
    (
        "learned positions",
        LearnedPositions(batch=2, positions=3, width=4, item_bytes=2),
        # 24 sums; 24 elements of the tokens and 12 of the positions
        Expected(vector={"elementwise": 24}, incoming=72, outgoing=48),
    ),
    ("soft cap", SoftCap(elements=5, item_bytes=2), Expected(vector={"elementwise": 15}, incoming=10, outgoing=10)),
    (
        "window partition with padding",
        WindowPartition(views=2, grid=5, window=3, width=4, item_bytes=2),
        # 5 -> 6 = 2 windows of 3; in 2*25*4 = 200 elements, out 2*36*4 = 288
        Expected(incoming=400, outgoing=576),
    ),
    (
        "relative positions",
        RelativePosition(sequences=6, side=3, head_dim=4, entries=9, item_bytes=2),
        # 2 tables of 9*4 = 72; each einsum 6*9 queries * 3 keys * 4 channels = 648 MACs, two of them
        # resampling to 5 rows: 2 * 5*4 * 3 = 120
        # coordinates 2 * (3 + 3 + 9 + 9) = 48, sum of the axes 6 * 9*9 = 486: 534
        Expected(params=72, read=144, flops={"einsum": 2592}, vector={"resample": 120, "elementwise": 534}),
    ),
    (
        "rotary table",
        RotaryTable(positions=3, head_dim=4, item_bytes=2),
        # angles 3*2 = 6, cos 12, sin 12, two scalings 24: 54; 2 frequencies of 4 bytes, held twice; 2 tables of 12
        Expected(vector={"elementwise": 54}, incoming=8, outgoing=48, buffers=16),
    ),
    (
        "rotation of queries and keys",
        Rotary(batch=2, positions=3, heads=4, kv_heads=2, head_dim=4, item_bytes=2),
        # q 96 and k 48 elements: 144 * cos, 144 * sin, 144 additions, 72 negations: 504; 2 tables of 12
        Expected(vector={"elementwise": 504}, incoming=48),
    ),
    (
        "positions, added as they are",
        PositionEmbedding(views=2, grid=5, width=4, table_side=5, item_bytes=2, resampled=False),
        # 2*25*4 = 200 additions; table 25*4 = 100
        Expected(params=100, read=200, vector={"elementwise": 200}, incoming=400, outgoing=400),
    ),
    (
        "positions, resampled from 5x5 to 3x3",
        PositionEmbedding(views=2, grid=3, width=4, table_side=5, item_bytes=2, resampled=True),
        # 2*9*4 = 72 additions; 9*4 = 36 elements of 16 products and 15 sums: 36*31 = 1116
        Expected(params=100, read=200, vector={"elementwise": 72, "resample": 1116}, incoming=144, outgoing=144),
    ),
    (
        "class token, positions looked up elsewhere",
        ClassAndPositions(views=2, grid=3, width=4, entries=10, item_bytes=2, resampled=False),
        # 10 tokens: 2*10*4 = 80 additions; 72 features and 40 positions in, 80 out; class token 4
        Expected(params=4, read=8, vector={"elementwise": 80}, incoming=224, outgoing=160),
    ),
    (
        "class token, positions resampled from 4x4 to 3x3",
        ClassAndPositions(views=2, grid=3, width=4, entries=17, item_bytes=2, resampled=True),
        # reads the class token and the table: 4 + 17*4 = 72; only features come in: 72
        Expected(params=4, read=144, vector={"elementwise": 80, "resample": 1116}, incoming=144, outgoing=160),
    ),
    (
        "router",
        Router(tokens=3, hidden=4, experts=8, top_k=2, item_bytes=2),
        # 24 scores of 4 MACs; softmax 120; top-k 24; 6 weights, float32
        Expected(
            params=32,
            read=64,
            flops={"router": 192},
            vector={"softmax": 120, "select": 24, "elementwise": 6},
            incoming=24,
            outgoing=24,
        ),
    ),
    (
        "router with 4 groups",
        Router(tokens=3, hidden=4, experts=8, top_k=2, item_bytes=2, routing=RoutingRule(groups=4)),
        # group maxima 24, top-k of 3*4 groups 12, top-k 24: 60
        Expected(
            params=32,
            read=64,
            flops={"router": 192},
            vector={"softmax": 120, "select": 60, "elementwise": 6},
            incoming=24,
            outgoing=24,
        ),
    ),
    (
        "router with sigmoid, groups of two best, correction, normalised weights",
        Router(
            3, 4, 8, 2, 2, RoutingRule("sigmoid", groups=4, group_best=2, corrected=True, normalised=True, floor=True)
        ),
        # sigmoid 24; top-k 24, best of groups 24, top-k of groups 12: 60
        # correction 24, sums of groups 3*4*2 = 24, sums 6, floor 3, divisions 6, scale 6: 69; 8 float32 corrections in
        Expected(
            params=32,
            read=64,
            flops={"router": 192},
            vector={"sigmoid": 24, "select": 60, "elementwise": 69},
            incoming=56,
            outgoing=24,
            buffers=32,
        ),
    ),
    (
        "router without a scale",
        Router(3, 4, 8, 2, 2, RoutingRule(normalised=True, scaled=False)),
        # 6 additions and 6 divisions
        Expected(
            params=32,
            read=64,
            flops={"router": 192},
            vector={"softmax": 120, "select": 24, "elementwise": 12},
            incoming=24,
            outgoing=24,
        ),
    ),
    (
        "experts, fewer rows than experts",
        Experts(tokens=3, hidden=4, intermediate=5, experts=8, top_k=2, item_bytes=2),
        # an expert: 4*10 + 5*4 = 60 weights; 6 rows of 60 MACs = 360; at most 6 experts read
        # gate*up 6*5, weighting 6*4, sum 6*4: 78
        # in: 12 hidden + 30 activated at 2 bytes, 6 weights at 4: 84 + 24; out: 6*10 + 12 = 72
        Expected(
            params=480,
            active=120,
            read=720,
            flops={"expert_gemm": 720},
            vector={"elementwise": 78},
            incoming=108,
            outgoing=144,
        ),
    ),
    (
        "experts, all read",
        Experts(tokens=10, hidden=4, intermediate=5, experts=8, top_k=2, item_bytes=2),
        # 20 rows; 8*60*2 bytes; 20*60 MACs; 100 + 80 + 80; in (40 + 100)*2 + 80; out (200 + 40)*2
        Expected(
            params=480,
            active=120,
            read=960,
            flops={"expert_gemm": 2400},
            vector={"elementwise": 260},
            incoming=360,
            outgoing=480,
        ),
    ),
    ("joined features", FeatureConcat(3, 4, 5, 2), Expected(incoming=54, outgoing=54)),
    (
        "image tokens",
        ImageTokens(prompt_rows=140, hidden=4, item_bytes=2, pages=2, grid=2, columns=3, rows=2, crop_grid=3),
        # features 4 + 6*9 = 58; tokens 2*3 + 1 + 6*10 = 67; per element 2*4*2 = 16 bytes
        # in 16 * (58 + 70), out 16 * (70 + 67)
        Expected(params=8, read=16, incoming=2048, outgoing=2192),
    ),
    ("no image", ImageTokens(prompt_rows=140, hidden=4, item_bytes=2, pages=2, grid=0), Expected(params=8)),
]


@pytest.mark.parametrize(("layer", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_costs_by_hand(layer: Layer, expected: Expected) -> None:
    check(layer, expected)


def check(layer: Layer, expected: Expected) -> None:
    """Every metric of a layer is the expected one."""
    costs = layer.costs()
    assert costs.params == expected.params
    assert costs.active == (expected.params if expected.active is None else expected.active)
    assert costs.weight_bytes == 2 * expected.params
    assert costs.weight_read_bytes == expected.read
    assert {k: v for k, v in costs.flops.items() if v} == expected.flops
    assert {k: v for k, v in costs.vector_flops.items() if v} == expected.vector
    assert costs.input_bytes == expected.incoming
    assert costs.output_bytes == expected.outgoing
    assert costs.kv_read_bytes == expected.past
    assert costs.kv_cache_bytes == expected.cache
    assert costs.buffer_bytes == expected.buffers


def test_activation_without_a_formula_is_an_error() -> None:
    with pytest.raises(BadInput, match="no formula for this activation function") as caught:
        Activation(10, "mish", 2).costs()
    assert caught.value.got == "mish"


@pytest.mark.parametrize(("grid", "windows"), [(40, 3), (64, 5), (42, 3), (14, 1), (1, 1)])
def test_windows_per_side(grid: int, windows: int) -> None:
    # 40 -> 42 = 3 * 14, 64 -> 70 = 5 * 14
    assert windows_per_side(grid, 14) == windows


def test_vision_tokens() -> None:
    # the paper's base mode: 256 features, 16 newlines, 1 separator
    assert vision_tokens(16) == 273
    # and 2 x 2 crops of 10 x 10: 20 rows of 20 and a newline
    assert vision_tokens(16, 2, 2, 10) == 273 + 420
    # three columns, one row: 10 rows of 30 and a newline
    assert vision_tokens(16, 3, 1, 10) == 273 + 310
