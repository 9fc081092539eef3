"""The layers of encoders against arithmetic done by hand, written out beside it."""

from __future__ import annotations

import pytest

from costproof.analytic.attention import Attention, DistanceBuckets, NoBias, Scale
from costproof.analytic.costs import Layer
from costproof.analytic.elementwise import LayerScale
from costproof.analytic.embedding import ClassAndPositions, Embedding, FeaturesInPrompt, LearnedPositions, PositionIds
from costproof.analytic.linear import Lent, LmHead
from costproof.analytic.norms import LayerNorm
from costproof.analytic.patches import (
    AxialTable,
    InterpolatedPositions,
    JoinedImages,
    VolumePatches,
    WindowOrder,
)
from costproof.analytic.pooling import Probe, ProbeAttention
from tests.analytic.test_layers import Expected, check

ENCODERS: list[tuple[str, Layer, Expected]] = [
    ("indices of 5 positions and of segments, int64", PositionIds(entries=5, buffers=2), Expected(buffers=80)),
    (
        "layer scale",
        LayerScale(rows=3, width=4, item_bytes=2),
        Expected(params=4, read=8, vector={"elementwise": 12}, incoming=24, outgoing=24),
    ),
    (
        "one query to 3 tokens",
        ProbeAttention(sequences=2, tokens=3, width=4, heads=2, item_bytes=2),
        # three projections in, 3*16 + 12 = 60; read with the last one, 80; q 2*16, k and v 6*32, out 2*16: 256 MACs
        # 2*2*3 = 12 scores of 2 MACs, twice; the queries 8 and the tokens 24 come in
        Expected(
            params=60,
            read=160,
            flops={"linear": 512, "attention": 96},
            vector={"softmax": 60, "mean": 12, "elementwise": 8},
            incoming=64,
            outgoing=16,
        ),
    ),
    (
        "probe",
        Probe(sequences=2, width=4, item_bytes=2),
        # attention 8 and MLP 8 in; copies 8 and sum 8 out
        Expected(params=4, read=8, vector={"elementwise": 8}, incoming=32, outgoing=32),
    ),
    ("distances", DistanceBuckets(queries=3, keys=5), Expected(vector={"elementwise": 4 * 15})),
    ("zeros as biases", NoBias(heads=2, queries=3, keys=5, item_bytes=2), Expected(outgoing=60)),
    ("scale", Scale(elements=5, item_bytes=2), Expected(vector={"elementwise": 5}, incoming=10, outgoing=10)),
    # What the attention has written is copied: no region reads or writes more for it.
    ("joined images", JoinedImages(elements=5, item_bytes=2), Expected()),
    ("lent parameters", Lent(elements=7, item_bytes=2), Expected(params=7)),
    (
        "patches of volumes",
        VolumePatches(patches=3, volume=6, hidden=4, item_bytes=2),
        # 6*4 weights and 4 biases; 3*4 results of 6 MACs
        Expected(params=28, read=56, flops={"conv3d": 144}, incoming=36, outgoing=24),
    ),
    (
        "positions of four neighbours",
        InterpolatedPositions(patches=3, width=4, item_bytes=2),
        # 12 elements: 4 products, 4 additions, the sum; in 4*12 rows and 12 patches, and 12 weights in float32
        Expected(vector={"elementwise": 108}, incoming=120 + 48, outgoing=24),
    ),
    (
        "rows and columns",
        AxialTable(patches=3, head_dim=8),
        # 3*4 angles: product, cos, sin, two scalings; 2 frequencies in, held twice, 2*3*8 out, 4 bytes each
        Expected(vector={"elementwise": 60}, incoming=8, outgoing=192, buffers=16),
    ),
    (
        "patches of volumes without a bias",
        VolumePatches(patches=3, volume=6, hidden=4, item_bytes=2, bias=False),
        Expected(params=24, read=48, flops={"conv3d": 144}, incoming=36, outgoing=24),
    ),
    (
        "patches in the order of windows",
        WindowOrder(patches=8, width=4, head_dim=6, tokens=2, out=5, item_bytes=2),
        # 32 states and 10 of tokens, 2 bytes each; 2*8*6 cosines and sines of 4
        Expected(incoming=84 + 384, outgoing=84 + 384),
    ),
    (
        "attention in windows of 2 and 1 of 3 tokens",
        Attention(batch=1, queries=3, heads=2, kv_heads=2, head_dim=4, item_bytes=2, seen=5),
        # 2*5 scores of 4 MACs, twice; queries, keys and values 3*8 each
        Expected(flops={"attention": 160}, vector={"softmax": 50, "elementwise": 10}, incoming=144, outgoing=48),
    ),
    (
        "features of images in a prompt",
        FeaturesInPrompt(rows=3, prompt=5, width=4, item_bytes=2),
        Expected(incoming=24 + 40, outgoing=24 + 40),
    ),
    (
        "features that nobody else gets",
        FeaturesInPrompt(rows=3, prompt=5, width=4, item_bytes=2, returned=False),
        Expected(incoming=24 + 40, outgoing=40),
    ),
    (
        "a norm that nobody reads",
        LayerNorm(rows=3, width=4, item_bytes=2, read=False),
        # 7*12 and 2*3
        Expected(params=8, read=16, vector={"norm": 90}, incoming=24),
    ),
    (
        "class token and positions of its own, a mask token",
        ClassAndPositions(
            views=2, grid=3, width=4, entries=10, item_bytes=2, resampled=False, own_table=True, mask_token=True
        ),
        # 4 + 40 + 4 parameters, of which the mask token is not read; 2*10*4 sums; 2*9*4 tokens in
        Expected(params=48, read=88, vector={"elementwise": 80}, incoming=144, outgoing=160),
    ),
    (
        "positions without a class token",
        ClassAndPositions(views=2, grid=3, width=4, entries=9, item_bytes=2, resampled=False, class_token=False),
        # 2*9*4 sums; the tokens and 9*4 positions in
        Expected(vector={"elementwise": 72}, incoming=216, outgoing=144),
    ),
    (
        "positions and segments",
        LearnedPositions(batch=2, positions=3, width=4, item_bytes=2, others=1),
        # 24 elements, two additions each; words and segments 24 each and positions 12 in
        Expected(vector={"elementwise": 48}, incoming=120, outgoing=48),
    ),
    (
        "positions of every sequence, and segments",
        LearnedPositions(batch=2, positions=3, width=4, item_bytes=2, others=1, each=True),
        # the same, with 24 elements of positions in
        Expected(vector={"elementwise": 48}, incoming=144, outgoing=48),
    ),
    (
        "a table of another module",
        Embedding(rows=3, entries=7, width=4, item_bytes=2, lent=True),
        Expected(read=24, outgoing=24),
    ),
    (
        "lm_head with table and bias of other modules",
        LmHead(batch=2, positions=3, hidden=4, vocabulary=7, item_bytes=2, tied=True, lent_bias=True),
        # 28 and 7 are read
        Expected(read=70, flops={"linear": 336}, incoming=48, outgoing=84),
    ),
    (
        "attention with a bias of every head",
        Attention(batch=2, queries=3, heads=4, kv_heads=4, head_dim=5, item_bytes=2, bias="heads"),
        # 72 scores, scaled and biased; q, k and v 120 each and 4*3*3 biases in
        Expected(flops={"attention": 1440}, vector={"softmax": 360, "elementwise": 144}, incoming=792, outgoing=240),
    ),
]


@pytest.mark.parametrize(("layer", "expected"), [c[1:] for c in ENCODERS], ids=[c[0] for c in ENCODERS])
def test_costs_by_hand(layer: Layer, expected: Expected) -> None:
    check(layer, expected)
