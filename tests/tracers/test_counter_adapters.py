"""Every adapter on four layers that can be counted on paper, in the tool's own unit and words, on meta.

linear  6 -> 4 with bias on 2 x 5 rows: 10 * 6 * 4 = 240 MACs, 10 * 4 = 40 outputs with a bias each.
conv    3 -> 4 channels, 3 x 3, stride 2, on 8 x 8: 4 * 4 * 4 = 64 outputs of 27 MACs: 1,728 MACs, 64 biases.
norm    over 6 of 2 x 5 x 6 = 60 elements, with weight and bias.
sdpa    2 heads, 5 queries, 5 keys, width 4: 2 * 5 * 5 = 50 scores of 4 MACs, and as much for the sum: 400 MACs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from costproof.tracers.counters.protocol import COUNTERS
from tests.tracers.layers import LAYERS

ROOT: Final = Path(__file__).parents[2]

PACKAGES: Final = {"calflops": "calflops", "deepspeed": "deepspeed", "ptflops": "ptflops", "thop": "thop",
                   "torchinfo": "torchinfo", "onnx": "onnxscript"}  # fmt: skip
"""Counters of the extra, and what has to be importable for them."""

Rows = dict[tuple[str, str], int]

EXPECTED: Final[dict[str, dict[str, Rows]]] = {
    # MACs; 5 operations an element of a norm; no rule for fused attention.
    "fvcore": {
        "linear": {("part", "linear"): 240},
        "conv": {("part", "conv"): 1728},
        "norm": {("part", "layer_norm"): 5 * 60},
        "sdpa": {},
    },
    # FLOPs of products alone; on meta attention is two batched products.
    "FlopCounterMode": {
        "linear": {("part", "aten.addmm"): 2 * 240},
        "conv": {("part", "aten.convolution"): 2 * 1728},
        "norm": {},
        "sdpa": {("part", "aten.bmm"): 2 * 400},
    },
    # FLOPs; biases; 5 an element of a norm; for each score 1 of scaling and 5 of softmax.
    "torchlens": {
        "linear": {("part", "linear"): 2 * 240, ("part", "linear, beside the products"): 40},
        "conv": {("part", "conv2d"): 2 * 1728, ("part", "conv2d, beside the products"): 64},
        "norm": {("part", "layer_norm"): 5 * 60},
        "sdpa": {
            ("part", "scaled_dot_product_attention"): 2 * 400,
            ("part", "scaled_dot_product_attention, beside the products"): 6 * 50,
        },
    },
    # FLOPs of events. addmm on meta is alpha * mm + beta * bias: 40 + 4 multiplications, 40 additions, and mm again.
    # The norm: two multiplications an element (spread, weight); additions of the bias and of eps to 10 spreads;
    # it does not know subtraction and mean. Attention scales queries and keys, 2 * 5 * 4 = 40 each.
    "torch.profiler": {
        "linear": {
            ("[unattributed]", "aten.addmm"): 2 * 240,
            ("[unattributed]", "aten.addmm>aten.mm"): 2 * 240,
            ("[unattributed]", "aten.addmm>aten.mul"): 40 + 4,
            ("[unattributed]", "aten.addmm>aten.add"): 40,
        },
        "conv": {("[unattributed]", "aten.conv2d"): 2 * 1728},
        "norm": {("[unattributed]", "aten.mul"): 2 * 60, ("[unattributed]", "aten.add"): 60 + 10},
        "sdpa": {("[unattributed]", "aten.bmm"): 2 * 400, ("[unattributed]", "aten.mul"): 2 * 40},
    },
    # FLOPs; the bias of a convolution, not that of a linear layer; 5 an element of a norm; no attention.
    "calflops": {
        "linear": {("part", "linear"): 2 * 240},
        "conv": {("part", "conv2d"): 2 * 1728, ("part", "conv2d, beside the products"): 64},
        "norm": {("part", "layer_norm"): 5 * 60},
        "sdpa": {},
    },
    # As calflops, with attention; a linear layer with bias runs mm inside it on meta, which is counted again.
    "deepspeed": {
        "linear": {("part", "linear"): 2 * 240, ("part", "linear>mm"): 2 * 240},
        "conv": {("part", "conv2d"): 2 * 1728, ("part", "conv2d, beside the products"): 64},
        "norm": {("part", "layer_norm"): 5 * 60},
        "sdpa": {("part", "scaled_dot_product_attention"): 2 * 400},
    },
    # MACs and biases; one an element of a norm; the product inside a linear layer again; no attention.
    "ptflops": {
        "linear": {("part", "linear"): 240, ("part", "linear>mm"): 240, ("part", "bias"): 40},
        "conv": {("part", "conv2d"): 1728, ("part", "bias"): 64},
        "norm": {("part", "LayerNorm"): 60},
        "sdpa": {},
    },
    # MACs; 4 an element of a norm; functional products in the total alone.
    "thop": {
        "linear": {("part", ""): 240},
        "conv": {("part", ""): 1728},
        "norm": {("part", ""): 4 * 60},
        "sdpa": {("[unattributed]", ""): 400},
    },
    # Our own rules on the exported graph; attention is written out there, as two products.
    "onnx": {
        "linear": {("part", "linear"): 2 * 240},
        "conv": {("part", "conv2d"): 2 * 1728},
        "norm": {},
        "sdpa": {("part", "scaled_dot_product_attention"): 2 * 400},
    },
    # Weights times the first dimension, 2; those of a convolution also times its 4 * 4 places.
    "torchinfo": {
        "linear": {("part", ""): 2 * 6 * 4, ("part", "bias"): 2 * 4},
        "conv": {("part", ""): 16 * 4 * 27, ("part", "bias"): 16 * 4},
        "norm": {("part", ""): 2 * (6 + 6)},
        "sdpa": {},
    },
}


def installed(name: str) -> bool:
    """Whether the counter can run here."""
    return name not in PACKAGES or find_spec(PACKAGES[name]) is not None


def test_every_counter_has_its_table() -> None:
    assert set(EXPECTED) == {p.name for p in COUNTERS.ours}


def test_every_layer_by_every_installed_counter() -> None:
    """One test, so that no two workers begin the process, whose imports take most of the time."""
    here = [n for n in EXPECTED if installed(n) and n != "torchlens"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.tracers.layers", *here, "torchlens"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, tuple[int, list[tuple[str, str, int]]]] = json.loads(done.stdout.splitlines()[-1])
    found = {n: {(m, k): v for m, k, v in rows} for n, (_, rows) in said.items()}
    assert found == {f"{n} {layer}": EXPECTED[n][layer] for n in (*here, "torchlens") for layer in LAYERS}
    assert {n: len(rows) for n, (_, rows) in said.items()} == {n: len(rows) for n, rows in found.items()}
    assert {n: total for n, (total, _) in said.items()} == {n: sum(rows.values()) for n, rows in found.items()}
    if left := [n for n in EXPECTED if not installed(n)]:
        pytest.skip(f"not installed: {', '.join(left)} of costproof[counters]")


@pytest.mark.parametrize("name", EXPECTED)
def test_what_it_states_is_what_the_rows_show(name: str) -> None:
    """240 MACs of a linear layer are 240 or 480, and a fifth of that for a tool that takes 2 of 2 x 5 rows."""
    info = COUNTERS.load(name).info
    product = max(EXPECTED[name]["linear"].values())
    assert product == {"mac": 240, "flop": 480}[info.unit] // (5 if info.rows == "first" else 1)
    assert info.tested
