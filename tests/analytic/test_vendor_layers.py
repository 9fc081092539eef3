"""The layers of the vendor's variant against arithmetic done by hand, written out beside it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

from costproof.analytic.costs import Layer
from costproof.analytic.embedding import ClassAndPositions
from costproof.analytic.experts import ExpertLoop, LoopedExperts
from costproof.analytic.norms import LayerNorm2d
from costproof.analytic.rotary import RotaryProduct
from costproof.models.families.deepseek_ocr import formulas as ocr
from costproof.models.families.deepseek_ocr.formulas import PageInPlace
from costproof.models.pages import formulas as pages
from costproof.models.pages.formulas import RelativePosition
from tests.analytic.test_decoder_layers import DECODERS
from tests.analytic.test_encoder_layers import ENCODERS
from tests.analytic.test_layers import CASES, Expected, check

VENDOR: list[tuple[str, Layer, Expected]] = [
    (
        "norm over channels, written out",
        LayerNorm2d(rows=3, width=4, item_bytes=2),
        # 12 elements: mean, minus, square, mean, minus, divide, times, plus = 8 each; eps and root for 3 pixels
        Expected(params=8, read=16, vector={"norm": 8 * 12 + 6}, incoming=24, outgoing=24),
    ),
    (
        "rotary table by a product",
        RotaryProduct(positions=5, head_dim=8, item_bytes=2),
        # [4, 1] by [1, 5]: 20 MACs; 5*8 angles: cos, sin and two scalings; in 4 float32, out 2*40*2
        Expected(flops={"matmul": 40}, vector={"elementwise": 160}, incoming=16, outgoing=160, buffers=16),
    ),
    (
        "looped experts, few rows",
        LoopedExperts(tokens=1, hidden=4, intermediate=5, experts=8, top_k=2, item_bytes=2),
        # 2 rows; an expert has 3*20 = 60 elements; 2*60 MACs; silu 2*2*5, product 2*5
        # in (gate 4 + up 4 + act 5 + product 10 + down 5) * 2 rows * 2 bytes; out (5 + 5 + 5 + 5 + 4) * 2 * 2
        Expected(
            params=480,
            active=120,
            read=2 * 60 * 2,
            flops={"linear": 240},
            vector={"activation": 20, "elementwise": 10},
            incoming=112,
            outgoing=96,
        ),
    ),
    (
        "loop over experts",
        ExpertLoop(tokens=3, hidden=4, top_k=2, item_bytes=2),
        # 6 rows: 24 products, 24 additions, 12 for the shared experts
        # in: tokens 12, results 24, shared 12, times 2 bytes, and 6 float32 weights; out: copies 24, sum 12
        Expected(vector={"elementwise": 60}, incoming=96 + 24, outgoing=72),
    ),
    (
        "expert loop without shared experts",
        ExpertLoop(tokens=3, hidden=4, top_k=2, item_bytes=2, shared=False),
        # 24 products, 24 additions; in: tokens 12, results 24, times 2 bytes, and 6 float32 weights
        Expected(vector={"elementwise": 48}, incoming=72 + 24, outgoing=72),
    ),
    (
        "looped experts with another activation",
        LoopedExperts(tokens=1, hidden=4, intermediate=5, experts=8, top_k=2, item_bytes=2, function="gelu"),
        # gelu 5*2*5; the rest as above
        Expected(
            params=480,
            active=120,
            read=2 * 60 * 2,
            flops={"linear": 240},
            vector={"activation": 50, "elementwise": 10},
            incoming=28 * 4,
            outgoing=24 * 4,
        ),
    ),
    (
        "page in place",
        PageInPlace(prompt=7, hidden=4, item_bytes=2, pixels=100, features=5, clip=3, sam=2),
        # in: 100 pixels, 5*(3 + 2) features, 5*4 projected, 7*4 prompt = 173; out: 25 joined, 28 prompt, 49 mask
        Expected(params=8, read=16, vector={"reduction": 100}, incoming=346, outgoing=204),
    ),
    (
        "prompt without a page",
        PageInPlace(prompt=7, hidden=4, item_bytes=2, pixels=12),
        Expected(params=8, vector={"reduction": 12}, incoming=24, outgoing=98),
    ),
    ("a step", PageInPlace(prompt=1, hidden=4, item_bytes=2, masked=False), Expected(params=8)),
    (
        "relative positions of the table's own length",
        RelativePosition(sequences=6, side=3, head_dim=4, entries=5, item_bytes=2, resampled=False),
        # two tables of 5*4; looked up 2 * 9 rows of 4; 2 einsums of 6*9*3*4 MACs; 4*3 + 4*9 coordinates; 6*81 sums
        Expected(
            params=40, read=144, flops={"einsum": 2 * 2 * 648}, vector={"elementwise": 48 + 486}
        ),
    ),
    (
        "positions that are looked up and resampled",
        ClassAndPositions(views=2, grid=3, width=4, entries=5, item_bytes=2, resampled=True, looked_up=True),
        # sums 2*10*4, taps 31*9*4; in: tokens 2*9*4 and the whole table 5*4; only the class token is read here
        Expected(params=4, read=8, vector={"elementwise": 80, "resample": 1116}, incoming=184, outgoing=160),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "expected"), [c[1:] for c in VENDOR], ids=[c[0] for c in VENDOR])
def test_costs_by_hand(layer: Layer, expected: Expected) -> None:
    check(layer, expected)


BY_ROWS = {"packed_attention", "packed_latents"}
"""Sums over rows, whose sizes are symbols of their own: test_decoder_layers and tests/models/test_rows.py."""


def test_every_layer_has_a_case() -> None:
    room = import_module("costproof.analytic")
    files = [import_module(f"{room.__name__}.{m.name}") for m in iter_modules(room.__path__)]
    files += [pages, ocr]
    layers = {
        vars(x)["name"]
        for f in files
        for x in vars(f).values()
        if isinstance(x, type) and "name" in vars(x) and hasattr(x, "costs")
    }
    assert {layer.name for _, layer, _ in (*CASES, *VENDOR, *ENCODERS, *DECODERS)} == layers - BY_ROWS
