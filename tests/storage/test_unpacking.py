"""Vector FLOPs of unpacking and scaling: formula, export and run of a reference against arithmetic by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from costproof.analytic.quantised import MatrixShape, scaling, unpacking
from costproof.ledger.errors import Bug
from costproof.ledger.metrics import UNPACKED as SAVED
from costproof.ledger.metrics import UNPACKING, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.storage.formats import (
    Awq,
    CompressedTensors,
    Format,
    FourBit,
    Fp4,
    Fp8,
    Gptq,
    LinearShape,
    LlmInt8,
    Mlx,
    ModelOptFp8,
    Mxfp4,
    Nvfp4,
    TorchaoEightBit,
    TorchaoInt4,
)
from costproof.tracers import format_runs
from costproof.tracers import unpacking as traced
from costproof.tracers.stored_module import StoredMatrix

BLOCKS = CompressedTensors("float-quantized", 8, True, "block", block=(2, 3))
GROUPS = CompressedTensors("pack-quantized", 4, False, "group", 32)
CHANNELS = CompressedTensors("int-quantized", 8, False, "channel")
NVFP4 = CompressedTensors("nvfp4-pack-quantized", 4, True, "tensor_group", 16)
UNPACKED: list[tuple[Format, int, int, int]] = [
    # A product for each weight; zero points are integers.
    (Gptq(4, 64), 40, 96, 40 * 96),
    (Gptq(3, None), 32, 64, 32 * 64),
    (Awq(4, 32), 40, 96, 40 * 96),
    (Awq(4, 32, "gemv"), 40, 96, 40 * 96),
    (Awq(4, 128, "marlin"), 64, 256, 64 * 256),  # from integers with a sign
    (Awq(4, 64, "gemv_fast"), 40, 192, 2 * 40 * 192),  # a product and a sum, as the zero point is a number
    (TorchaoEightBit("I8"), 5, 7, 5 * 7),
    (TorchaoEightBit("I8", group=4), 5, 8, 5 * 8),
    (TorchaoEightBit("F8_E4M3", whole=True), 5, 7, 5 * 7),
    (CHANNELS, 5, 7, 5 * 7),
    (BLOCKS, 5, 7, 5 * 7),
    (GROUPS, 7, 96, 7 * 96),
    # And an addition, or the subtraction of a zero point that is converted to the dtype of the scale.
    (replace(GROUPS, symmetric=False), 7, 96, 2 * 7 * 96),
    (Mlx(4, 32), 5, 96, 2 * 5 * 96),
    (TorchaoInt4(8, tiled=False), 5, 16, 2 * 5 * 16),
    (TorchaoInt4(32, tiled=True), 5, 100, 2 * 8 * 1024),  # padded to whole tiles
    (FourBit("nf4", nested=False), 5, 7, 5 * 7),
    # 68 blocks of 64, the last one of two weights; the maximum of each is a product and a sum.
    (FourBit("nf4", nested=True), 130, 33, 130 * 33 + 2 * 68),
    # Two blocks a row, the second with 24 numbers of padding; a power of two for each.
    (Mxfp4(), 3, 40, 3 * 2 * (32 + 1)),
    (CompressedTensors("mxfp4-pack-quantized", 4, True, "group", 32), 3, 64, 3 * 64 + 3 * 2),
    # Each scale is divided by that of the matrix.
    (NVFP4, 3, 32, 3 * 32 + 3 * 2),
]
SCALED: list[tuple[Format, int, int, int]] = [
    # Three rows. Absolute value, maximum, division; three blocks of columns with a scale each, the last of four; a
    # partial sum of each is multiplied by two scales and added.
    (Fp8((4, 8), static=False), 6, 20, 3 * (3 * 20 + 3 + 3 * (2 + 1) * 6)),
    # A logarithm, a ceiling and a power for each scale.
    (Fp8((4, 8), powers=True), 6, 20, 3 * (3 * 20 + 3 * 4 + 3 * (2 + 1) * 6)),
    (Fp8((4, 8), powers=True, model_type="deepseek_v4"), 6, 20, 3 * (3 * 20 + 3 * 4 + 3 * (2 + 1) * 6)),
    (Fp8((4, 8), static=True), 6, 20, 3 * (20 + 3 * (1 + 1) * 6 + 6)),
    # Two scales of inputs, the second of 12 columns, each with a logarithm, a ceiling and a power; five partial sums,
    # of 32 columns and of the last 12.
    (Fp4(model_type="deepseek_v4"), 6, 140, 3 * (3 * 140 + 2 * 4 + 3 * 5 * 6)),
    (Fp4(powers=False), 6, 140, 3 * (3 * 140 + 2 + 3 * 5 * 6)),
    # One scale a row and two products for each result.
    (Fp8(None), 6, 20, 3 * (3 * 20 + 1 + 2 * 6)),
    (Fp8(None, static=True), 6, 20, 3 * (20 + 2 * 6)),
    (ModelOptFp8(), 6, 20, 3 * (20 + 2 * 6)),
    (TorchaoEightBit("F8_E4M3", dynamic=True), 6, 20, 3 * (3 * 20 + 1 + 2 * 6)),
    (CompressedTensors("float-quantized", 8, True, "channel", inputs="dynamic"), 6, 20, 3 * (3 * 20 + 1 + 2 * 6)),
    # Integers are rounded.
    (TorchaoEightBit("I8", dynamic=True), 6, 20, 3 * (4 * 20 + 1 + 2 * 6)),
    (replace(CHANNELS, inputs="dynamic"), 6, 20, 3 * (4 * 20 + 1 + 2 * 6)),
    (replace(CHANNELS, strategy="tensor", inputs="static"), 6, 20, 3 * (2 * 20 + 2 * 6)),
    (LlmInt8(), 6, 20, 3 * (4 * 20 + 1 + 3 * 6)),  # and the division by 127²
    # Two groups of 16, with two divisions and a product for each scale.
    (Nvfp4(None), 6, 32, 3 * (3 * 32 + 2 * 3 + 2 * 6)),
    (replace(NVFP4, inputs="dynamic", input_levels=True), 6, 32, 3 * (3 * 32 + 2 * 3 + 2 * 6)),
]


@pytest.mark.parametrize(("of", "rows", "columns", "expected"), UNPACKED)
def test_unpacking_by_hand(of: Format, rows: int, columns: int, expected: int) -> None:
    assert not of.products
    linear = LinearShape(rows, columns, False, "BF16")
    assert unpacking(of, MatrixShape(rows, columns, False, "bfloat16")) == expected
    assert [traced._count(of, linear, None, run=run) for run in (False, True)] == [expected, expected]


@pytest.mark.parametrize(("of", "rows", "columns", "expected"), SCALED)
def test_scaling_by_hand(of: Format, rows: int, columns: int, expected: int) -> None:
    assert of.products
    linear, shape = LinearShape(rows, columns, False, "BF16"), MatrixShape(rows, columns, False, "bfloat16")
    each: Any = scaling(of, shape)
    assert 3 * each == expected
    assert [traced._count(of, linear, 3, run=run) for run in (False, True)] == [expected, expected]
    assert 3 * traced._count(of, linear, traced._ROWS, run=False) == expected * traced._ROWS


@pytest.mark.parametrize(
    "of",
    [
        replace(CHANNELS, inputs="static", input_zero=True),
        replace(CHANNELS, inputs="dynamic", symmetric=False),
        CompressedTensors("mxfp8-quantized", 8, True, "group", 32, inputs="dynamic"),
        replace(GROUPS, inputs="dynamic"),
        TorchaoEightBit("I8", group=4, dynamic=True),
    ],
)
def test_arithmetic_that_is_not_known_has_no_number(of: Format) -> None:
    find, rows = (scaling, 3) if of.products else (unpacking, None)
    assert find(of, MatrixShape(6, 32, False, "bfloat16")) is None
    for run in (False, True):
        with pytest.raises(traced._Unknown, match=r"costproof (does not know|knows .* only)"):
            traced._count(of, LinearShape(6, 32, False, "BF16"), rows, run=run)


def test_graph_and_run_share_no_arithmetic() -> None:
    """A weight with a wrong scale in one is a difference to the other."""
    for graph, run in (
        (traced._UNPACK, format_runs.UNPACK_BY_GROUP),
        (traced._SCALE, format_runs.SCALE_BY_BLOCK),
    ):
        assert graph.keys() == run.keys()
        code = [{f.__module__ for f in table.values()} for table in (graph, run)]
        assert code == [{traced.__name__}, {format_runs.__name__}]


def of_linear(of: Format, calls: int, rows: int) -> tuple[Ledger, traced.QuantisedModules]:
    """A linear layer of 40 x 96 that multiplies some rows in some calls, and a norm, as a graph has them."""
    costs: dict[Metric, int | None] = {
        "calls": calls,
        "weight_read_bytes": calls * 40 * 96 * 2,
        "input_bytes": rows * 96 * 2,
    }
    nodes = (
        CostNode("prefill", "prompt", "lin", "", costs),
        CostNode("prefill", "prompt", "lin", "linear", {"flops": 2 * rows * 40 * 96}),
        CostNode("prefill", "prompt", "norm", "", {"calls": calls, "weight_read_bytes": calls * 96 * 2}),
    )
    stored = {"lin": [StoredMatrix(LinearShape(40, 96, False, "BF16"), 1, of, "Linear")]}
    modules = traced.QuantisedModules(stored, {"lin", "norm"}, {"lin": 5_000})
    metrics: tuple[Metric, ...] = ("calls", "weight_read_bytes", "input_bytes", "flops")
    return Ledger("static", nodes, metrics, ("prefill",)), modules


@pytest.mark.parametrize(
    ("of", "work", "fast"),
    [
        (Awq(4, 32), 3 * 40 * 96, 0),  # each weight, in each of three calls
        # Of each of 7 rows 96 inputs are divided by their scale, and 40 results multiplied by two.
        (ModelOptFp8(), 7 * (96 + 2 * 40), 2 * 7 * 40 * 96),
    ],
)
def test_what_formats_add_to_a_linear_layer(of: Format, work: int, fast: int) -> None:
    """Bytes saved are 5,000 a call, of a norm none."""
    found = traced.with_formats(*of_linear(of, 3, 7), "bfloat16")
    assert (found.total(UNPACKING), found.total(SAVED)) == (work, 3 * 5_000)
    assert sum(node.cost("float8_flops") or 0 for node in found.nodes) == fast


@pytest.mark.parametrize("of", [Awq(4, 32), ModelOptFp8()])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_reads", lambda matrices, item, costs: sympy.Integer(1)),
        ("_rows", lambda matrices, flops: flops / (4 * 40 * 96)),
        ("_saved", lambda modules, module, item, costs: costs["weight_read_bytes"]),
        ("_as_multiplied", lambda nodes, matrices: nodes),
    ],
)
def test_a_mistake_in_what_formats_add_is_told(
    of: Format, name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = traced.with_formats(*of_linear(of, 3, 8), "bfloat16")
    monkeypatch.setattr(traced, name, wrong)
    if isinstance(of, Awq) and name in ("_rows", "_as_multiplied"):  # which products in 16 bits do not need
        assert traced.with_formats(*of_linear(of, 3, 8), "bfloat16") == right
        return
    with pytest.raises(Bug, match="counted in another way"):
        traced.with_formats(*of_linear(of, 3, 8), "bfloat16")


def test_integers_are_those_of_the_words() -> None:
    numbers = torch.arange(32, dtype=torch.int64).remainder(7)
    word = sum(int(n) << 3 * i for i, n in enumerate(numbers))
    words = torch.tensor([[word >> 32 * i & (1 << 32) - 1 for i in range(3)]], dtype=torch.int64).to(torch.int32)
    assert torch.equal(traced._integers(words, 3, 32)[0].long(), numbers)
