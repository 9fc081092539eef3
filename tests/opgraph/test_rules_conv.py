"""Convolutions against torch's own counter and against a loop over taps."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.opcalls import call, counted, taken, torch_count, value

aten = torch.ops.aten


@settings(max_examples=40)
@given(
    groups=st.integers(1, 3),
    per_group=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    size=st.integers(5, 9),
    transposed=st.booleans(),
    rank=st.integers(1, 3),
)
def test_every_convolution_agrees_with_torch(
    groups: int, per_group: tuple[int, int], kernel: int, stride: int, dilation: int, padding: int, size: int,
    transposed: bool, rank: int,
) -> None:  # fmt: skip
    c_in, c_out = groups * per_group[0], groups * per_group[1]
    size = size if rank < 3 else 5
    x = torch.ones(2, c_in, *[size] * rank)
    weight_shape = (c_in, per_group[1]) if transposed else (c_out, per_group[0])
    weight = torch.ones(*weight_shape, *[kernel] * rank)
    args = (x, weight, None, [stride] * rank, [padding if not transposed else 0] * rank, [dilation] * rank, transposed,
            [0] * rank, groups)  # fmt: skip
    op, _ = taken(aten.convolution.default, *args)
    assert counted(op).flops == torch_count(aten.convolution.default, *args)


def test_named_convolutions_count_like_the_general_one() -> None:
    x, weight, bias = torch.ones(1, 4, 8, 8), torch.ones(6, 2, 3, 3), torch.ones(6)
    args = (x, weight, bias, [2, 2], [1, 1], [1, 1], 2)
    op, _ = taken(aten.conv2d.default, *args)
    # 6 channels of 4x4 results, each over 2 channels of 3x3 taps
    assert counted(op).flops == 2 * 6 * 16 * 2 * 9 == torch_count(aten.conv2d.default, *args)
    up = taken(aten.conv_transpose2d.input, x, torch.ones(4, 5, 2, 2))[0]
    # each of 4x8x8 inputs is spread over 5 channels of 2x2 taps
    assert counted(up).flops == 2 * 4 * 64 * 5 * 4


def test_depthwise_by_counting_taps() -> None:
    # 3 channels of their own 3x3 kernel over 5x5, no padding: 3x3 positions
    taps = sum(1 for _ in product(range(3), range(3), range(3), range(3), range(3)))
    op = call("conv2d", [value(1, 3, 5, 5), value(3, 1, 3, 3)], [value(1, 3, 3, 3)], {"groups": 3})
    assert counted(op).flops == 2 * taps


def test_python_level_transposed_convolution() -> None:
    op = call("conv_transpose1d", [value(2, 4, 10), value(4, 3, 5)], [value(2, 3, 14)])
    assert counted(op).flops == 2 * (2 * 4 * 10) * 3 * 5
