"""Elementwise, reduction, norm and resampling rules against primitives written out.

Expected numbers are worked out by hand beside each case; where an operator is a composition, its
own definition is run on real tensors and every primitive of it counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, Value
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.support.opcalls import call, counted, taken, value

aten = torch.ops.aten


def vector(name: str, *tensors: Value, out: Value, **attrs: Any) -> Any:
    cost = counted(call(name, tensors, [out], attrs))
    assert cost.flops == 0
    return cost.vector


class Primitives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts an output element of each primitive, an input element of each reduction, views not at all."""

    reductions = ("sum", "mean", "amax", "max")
    views = ("view", "expand", "permute", "unsqueeze", "clone", "detach", "_to_copy", "alias", "slice", "split")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func).split(".")[1]
        if name not in self.views:
            self.total += (args[0] if name in self.reductions else result).numel()
        return result


def primitives(definition: Callable[..., Any], *args: Any) -> int:
    counter = Primitives()
    with counter:
        definition(*args)
    return counter.total


X = torch.rand(3, 4, 10) + 0.5


def _softmax(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    squares = centred * centred
    return centred * (squares.mean(-1, keepdim=True) + 1e-5).rsqrt() * w + b


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * (x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt())


W = torch.ones(10)


@pytest.mark.parametrize(
    ("overload", "args", "definition", "operands"),
    [
        (aten.layer_norm.default, (X, [10], W, W), _layer_norm, (X, W, W)),
        (aten.rms_norm.default, (X, [10], W), _rms_norm, (X, W)),
        (aten.gelu.default, (X,), lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)), (X,)),
        (aten.silu.default, (X,), lambda x: x * torch.sigmoid(x), (X,)),
        (aten.hardswish.default, (X,), lambda x: x * torch.clamp(x + 3, 0, 6) / 6, (X,)),
        (aten.softmax.int, (X, -1), _softmax, (X,)),
        (aten.mish.default, (X,), lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), (X,)),
        (aten.addcmul.default, (X, X, X), lambda a, b, c: a + b * c, (X, X, X)),
        (aten.lerp.Tensor, (X, X, X), lambda a, b, t: a + (b - a) * t, (X, X, X)),
    ],
    ids=lambda v: str(v) if hasattr(v, "_schema") else None,
)
def test_compositions_count_as_their_definitions(
    overload: Any, args: tuple[Any, ...], definition: Callable[..., Any], operands: tuple[Any, ...]
) -> None:
    op, _ = taken(overload, *args)
    expected = primitives(definition, *operands)
    if overload is aten.softmax.int:
        assert expected == 5 * X.numel()
    if overload is aten.mish.default:
        expected += X.numel()  # softplus compares with its threshold first
    assert counted(op).vector == expected


def test_gelu_with_tanh() -> None:
    # 0.5*x, x^3, *0.0447, +x, *c, tanh, +1, *
    assert vector("gelu", value(4, 5), out=value(4, 5), approximate="tanh") == 8 * 20


def test_quick_gelu_written_out() -> None:
    x = value(2, 3)
    ops = [
        call("__rmul__", [x], [value(2, 3)], {"other": 1.702}),
        call("sigmoid", [x], [value(2, 3)]),
        call("__mul__", [x, x], [value(2, 3)]),
    ]
    assert [counted(o).vector for o in ops] == [6, 6, 6]


@pytest.mark.parametrize(("affine", "per_element"), [((), 5), (("weight",), 6), (("weight", "bias"), 7)])
def test_layer_norm_parts(affine: tuple[str, ...], per_element: int) -> None:
    x, w = value(3, 4, 10), value(10)
    names = {"input": x, **dict.fromkeys(affine, w)}
    op = call("aten.layer_norm.default", list(names.values()), [value(3, 4, 10)], {"normalized_shape": [10]}, names)
    assert counted(op).vector == per_element * 120 + 2 * 12
    bare = call("rms_norm", [x], [value(3, 4, 10)], {"normalized_shape": (4, 10)})
    assert counted(bare).vector == 3 * 120 + 2 * 3


def test_other_norms() -> None:
    x, w = value(2, 6, 5, 5), value(6)
    n = 2 * 6 * 25
    assert vector("group_norm", x, w, w, out=x, num_groups=3) == 7 * n + 2 * (2 * 3)
    assert vector("instance_norm", x, out=x) == 5 * n + 2 * (2 * 6)
    named = {"input": x, "weight": w, "bias": w, "running_mean": w, "running_var": w}
    evaluated = call("batch_norm", list(named.values()), [x], {"training": False}, named)
    assert counted(evaluated).vector == 4 * n + 2 * 6  # subtract, normalise, scale, shift; stored statistics
    trained = call("batch_norm", list(named.values()), [x], {"training": True}, named)
    assert counted(trained).vector == 7 * n + 2 * 6
    assert isinstance(cost_of(call("layer_norm", [x], [x])), UnknownCost)  # no normalized_shape, no weight


def test_a_batch_norm_that_updates_makes_its_statistics() -> None:
    # Mean, subtract, square; subtract, normalise, scale, shift: 7 for each of 54; 2 for each of 6 channels.
    x, w = torch.rand(1, 6, 9), torch.ones(6)
    op, _ = taken(aten._batch_norm_with_update.default, x, w, w, torch.zeros(6), torch.ones(6), 0.1, 1e-5)
    assert counted(op).vector == 7 * 54 + 2 * 6


@pytest.mark.parametrize(
    "name", ["add", "aten.add_.Tensor", "__radd__", "__iadd__", "sub", "rsub", "__truediv__", "aten.pow.Tensor_Scalar",
             "rsqrt", "torch.exp", "sqrt_", "cos", "sin", "tanh", "sigmoid", "erf", "relu", "relu6", "abs", "maximum",
             "clamp_min", "neg", "__neg__", "log", "floor", "hardtanh", "reciprocal"]
)  # fmt: skip
def test_primitives_are_one_per_output_element(name: str) -> None:
    assert vector(name, value(4, 1), out=value(4, 5)) == 20
    assert vector(name, value(4, 1, dtype="int64"), out=value(4, 5, dtype="int64")) == 0


def test_details_of_arithmetic() -> None:
    x = value(4, 5)
    assert vector("add", x, x, out=x, alpha=2) == 40
    assert vector("addcmul", x, x, x, out=x, value=0.5) == 60
    assert vector("mul", value(4, 5, dtype="int64"), out=x, other=1.0) == 20  # the result is floating point
    assert vector("__eq__", x, out=value(4, 5, dtype="bool")) == 20
    assert vector("eq", value(4, 5, dtype="int64"), out=value(4, 5, dtype="bool")) == 0
    assert vector("__invert__", value(4, dtype="bool"), out=value(4, dtype="bool")) == 0
    z = value(4, 5, dtype="complex64")
    assert vector("mul", z, z, out=z) == 120
    assert vector("mul", z, x, out=z) == 40
    assert vector("add", z, z, out=z) == 40
    assert isinstance(cost_of(call("div", [z, z], [z])), UnknownCost)


def test_reductions_count_what_they_read() -> None:
    x, row, i = value(4, 5), value(4), value(4, 5, dtype="int64")
    for name in ("sum", "aten.mean.dim", "amax", "prod", "cumsum", "max", "aten.sum.dim_IntList"):
        assert vector(name, x, out=row) == 20, name
    assert vector("cumsum", i, out=i) == vector("sum", i, out=value(dtype="int64")) == 0
    assert vector("cumsum", x, out=i) == 0  # counted in integers
    assert vector("max", x, value(1), out=x) == 20
    assert vector("trace", value(3, 100), out=value()) == 3  # the diagonal
    assert vector("trace", value(9, 4, dtype="complex64"), out=value(dtype="complex64")) == 2 * 4
    assert vector("var", x, out=row) == 80  # mean, subtract, square, mean
    assert vector("std", x, out=row) == 84  # and a root per row
    assert vector("logsumexp", x, out=row) == 4 * 20 + 2 * 4
    assert vector("linalg_vector_norm", x, out=row, ord=2) == 2 * 20 + 4
    assert vector("norm", x, out=row, p=3) == 3 * 20 + 4  # abs, power, add; a root per row
    assert vector("norm", x, out=row, p=float("inf")) == vector("norm", x, out=row, p=1) == 2 * 20
    assert isinstance(cost_of(call("norm", [x], [row], {"p": "nuc"})), UnknownCost)
    # Of a matrix, only the Frobenius norm is the 2-norm of its elements.
    assert vector("linalg_norm", x, out=value(), ord="fro") == vector("linalg_norm", x, out=value()) == 2 * 20 + 1
    assert isinstance(cost_of(call("linalg_norm", [x], [value()], {"ord": 2})), UnknownCost)


def test_selection_compares_floats_once() -> None:
    x, i = value(4, 64), value(4, 64, dtype="int64")
    assert counted(call("topk", [x], [value(4, 6), value(4, 6, dtype="int64")])).vector == 256
    assert vector("argmax", x, out=value(4, dtype="int64")) == 256
    assert vector("sort", i, out=i) == 0


@pytest.mark.parametrize(
    ("name", "mode", "taps"),
    [
        ("aten.upsample_nearest2d.vec", "nearest", 1), ("aten.upsample_linear1d.vec", "linear", 2),
        ("aten.upsample_bilinear2d.vec", "bilinear", 4), ("aten._upsample_bicubic2d_aa.vec", "bicubic", 16),
        ("aten.upsample_bicubic2d.default", "bicubic", 16), ("aten.upsample_trilinear3d.vec", "trilinear", 8),
    ],
)  # fmt: skip
def test_interpolation_by_taps(name: str, mode: str, taps: int) -> None:
    x, y = value(1, 2, 6), value(1, 2, 10)
    expected = 0 if taps == 1 else (taps + taps - 1) * 20
    assert vector(name, x, out=y) == expected
    assert vector("interpolate", x, out=y, mode=mode) == expected
    assert isinstance(cost_of(call("interpolate", [x], [y], {"mode": "lanczos"})), UnknownCost)


def test_pooling_by_taps() -> None:
    x = torch.rand(2, 3, 9, 7)
    op, _ = taken(aten.avg_pool2d.default, x, [3, 2], [2, 2])
    assert counted(op).vector == 2 * 3 * (4 * 3) * (3 * 2)  # 4x3 results of 3x2 taps
    assert vector("max_pool1d", value(1, 2, 8), out=value(1, 2, 4), kernel_size=2) == 2 * 4 * 2
    # 7 into 3 bins: [0,3) [2,5) [4,7): 3 + 3 + 3 taps
    assert vector("adaptive_avg_pool1d", value(1, 2, 7), out=value(1, 2, 3)) == 2 * 9
    assert vector("aten.adaptive_avg_pool2d.default", value(1, 2, 6, 6), out=value(1, 2, 1, 1)) == 72
    assert vector("interpolate", value(1, 2, 7), out=value(1, 2, 3), mode="area") == 18


def test_dropout_is_nothing_in_inference() -> None:
    x = value(4, 5)
    assert counted(call("dropout", [x], [x], {"training": False})).role == "alias"
    assert vector("dropout", x, out=x, training=True, p=0.1) == 40


def test_determinants_of_no_rows_are_no_work() -> None:
    # Of 3 rows: 2 + 1 divisions, 4 + 1 products and as many subtractions, and 2 products along the diagonal.
    op, _ = taken(aten.linalg_det.default, torch.rand(5, 3, 3))
    assert counted(op).vector == 5 * (3 + 2 * 5 + 2)
    op, _ = taken(aten.linalg_det.default, torch.rand(5, 0, 0))
    assert counted(op).vector == 0
    n = sympy.Symbol("n", positive=True, integer=True)
    assert vector("det", value(n, n), out=value()).subs({n: 3}) == 15


def test_native_dropout_trains_without_a_word() -> None:
    ones = torch.ones(4, 5)
    for train, expected in ((None, 2 * 20), (True, 2 * 20), (False, 0)):
        op, (kept, _) = taken(aten.native_dropout.default, ones, 0.5, train)
        assert counted(op).vector == expected
        assert bool((kept == ones).all()) == (expected == 0)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("cat", "move"), ("aten.constant_pad_nd.default", "move"), ("masked_fill_", "move"), ("where", "move"),
        ("one_hot", "move"), ("roll", "move"), ("repeat_interleave", "move"), ("tril", "move"),
        ("__setitem__", "move"), ("index_put_", "move"), ("masked_scatter", "move"), ("copy_", "move"),
        ("gather", "lookup"), ("embedding", "lookup"), ("index_select", "lookup"),
        ("view", "alias"), ("aten.reshape.default", "alias"), ("contiguous", "alias"), ("float", "alias"),
        ("aten._to_copy.default", "alias"), ("type", "alias"), ("long", "alias"), ("split_with_sizes", "alias"),
        ("unbind", "alias"), ("aten.slice.Tensor", "alias"), ("detach_", "alias"), ("view_as_complex", "alias"),
        ("identity", "alias"),
        ("arange", "factory"), ("empty_like", "factory"), ("new_zeros", "factory"), ("zero_", "factory"),
        ("aten.lift_fresh_copy.default", "factory"),
        ("aten._assert_tensor_metadata.default", "free"), ("aten.sym_size.int", "free"), ("item", "free"),
    ],
)  # fmt: skip
def test_what_does_no_arithmetic(name: str, role: str) -> None:
    cost = counted(call(name, [value(4, 5), value(4, 5, dtype="int64")], [value(4, 5)]))
    assert (cost.flops, cost.vector, cost.role) == (0, 0, role)


def test_getitem_looks_up_only_with_tensors() -> None:
    x, i = value(4, 5), value(3, dtype="int64")
    assert counted(call("__getitem__", [x], [value(2, 5)])).role == "alias"
    assert counted(call("__getitem__", [x, i], [value(3, 5)])).role == "lookup"


def test_fourier_transforms_that_keep_a_size() -> None:
    x = torch.rand(8, 8)
    # -1 keeps the 8: 8 x 4 real numbers, half of 5 * 32 * (3 + 2).
    for overload, dims in ((aten.fft_rfft2.default, {}), (aten.fft_rfftn.default, {"dim": [0, 1]})):
        op, _ = taken(overload, x, s=[-1, 4], **dims)
        assert counted(op).vector == 5 * 32 * 5 // 2
    op, _ = taken(aten.fft_fft2.default, x.to(torch.complex64), s=[-1, 4])
    assert counted(op).vector == 5 * 32 * 5
    # Of 8 x 8 complex numbers 8 x 14 real ones: 5 * 112 * (3 + 4) / 2.
    op, _ = taken(aten.fft_irfft2.default, x.to(torch.complex64), s=[-1, -1])
    assert counted(op).vector == 5 * 112 * 7 // 2


def test_a_window_of_ones_is_multiplied_too() -> None:
    # 4 frames of 4: 5 * 4 * 2 / 2 each; filled up from 3 to 4, a frame is multiplied.
    for width, window in ((4, 0), (3, 4)):
        op, _ = taken(aten.stft.default, torch.rand(10), 4, 2, width, onesided=True, return_complex=True)
        assert counted(op).vector == 4 * (20 + window)


def test_differences_of_differences() -> None:
    # 9 differences in each of 3 rows, then 8.
    op, _ = taken(aten.diff.default, torch.rand(3, 10), 2)
    assert counted(op).vector == 3 * 9 + 3 * 8
    # A row in front: 4 rows of 10, so 3, then 2 rows of differences.
    op, _ = taken(aten.diff.default, torch.rand(3, 10), 2, 0, torch.rand(1, 10))
    assert counted(op).vector == 10 * 3 + 10 * 2
    # After three passes nothing is left: 3 + 2 + 1.
    op, _ = taken(aten.diff.default, torch.rand(4), 6)
    assert counted(op).vector == 3 + 2 + 1
    n = sympy.Symbol("n", positive=True, integer=True)
    assert vector("diff", value(3, n), out=value(3, n - 2), n=2) == 3 * n - 3 + 3 * n - 6


def test_instance_norm_with_stored_statistics() -> None:
    # Subtract, normalise, scale, shift: 4 for each of 150; 2 for each of 2 * 3 rows.
    x, w = torch.rand(2, 3, 5, 5), torch.ones(3)
    op, _ = taken(aten.instance_norm.default, x, w, w, w, w, False, 0.1, 1e-5, False)
    assert counted(op).vector == 4 * 150 + 2 * 6
    op, _ = taken(aten.instance_norm.default, x, None, None, w, w, False, 0.1, 1e-5, False)
    assert counted(op).vector == 2 * 150 + 2 * 6
    op, _ = taken(aten.instance_norm.default, x, w, w, None, None, True, 0.1, 1e-5, False)
    assert counted(op).vector == 7 * 150 + 2 * 6


def test_a_histogram_of_integers_that_were_cast_for_it_counts_integers() -> None:
    # A router's chosen experts are cast on a processor, whose kernel takes no integers; a histogram of numbers is not.
    chosen, cast, numbers = value(12, dtype="int64"), value(12), value(12)
    range_ = {"bins": 4, "min": 0, "max": 3}
    ops = (
        call("float", [chosen], [cast]),
        call("histc", [cast], [value(4)], range_),
        call("aten.histc.default", [numbers], [value(4)], range_),
    )
    costs = cost_graph(Graph(ops, ())).costs
    assert [cost.vector for cost in costs if isinstance(cost, OpCost)] == [0, 0, 5 * 12]


def test_comparisons_count_wherever_they_are() -> None:
    x, y, i = value(3, 4), value(4), value(3, 4, dtype="int64")
    one, mask = value(), value(dtype="bool")
    assert vector("nan_to_num", x, out=x) == 3 * 12  # nan, the largest, the smallest
    assert vector("nan_to_num", i, out=i) == 0
    # Both ends, minus the lower one, times bins per width, plus 1; first the ends themselves.
    assert vector("histc", x, out=y, bins=4, min=0, max=1) == 5 * 12
    assert vector("histc", x, out=y, bins=4) == 7 * 12
    assert vector("histc", i, out=value(4, dtype="int64"), bins=4) == vector("histc", i, out=y, bins=4) == 0
    assert vector("count_nonzero", x, out=value(dtype="int64")) == vector("any", x, out=mask) == 12
    assert vector("equal", x, y, out=mask) == vector("allclose", x, y, out=mask) == 12
    assert vector("count_nonzero", i, out=one) == vector("all", i, out=mask) == vector("equal", i, i, out=mask) == 0


def test_adaptive_maximum_by_either_name() -> None:
    # 7 into 2 bins: [0,4) [3,7): 8 taps a row, 8 x 8 in each of 3 channels.
    for name in ("adaptive_max_pool2d", "adaptive_max_pool2d_with_indices"):
        out = [value(3, 2, 2), value(3, 2, 2, dtype="int64")]
        assert counted(call(name, [value(3, 7, 7)], out)).vector == 3 * 64
    assert vector("adaptive_max_pool1d_with_indices", value(3, 7), out=value(3, 2)) == 3 * 8
    assert vector("adaptive_max_pool3d_with_indices", value(3, 7, 7, 7), out=value(3, 2, 2, 2)) == 3 * 512


def test_adding_scatters() -> None:
    x, i, src = value(10, 5), value(7, dtype="int64"), value(7, 5)
    assert vector("index_add_", x, i, src, out=x) == 35
    assert vector("index_put_", x, i, src, out=x, accumulate=True) == 35
    assert vector("index_put_", x, i, src, out=x) == 0
    bag = counted(call("embedding_bag", [x, i], [value(2, 5)], names={"weight": x, "indices": i}))
    assert bag.vector == 35
