"""Cost convolutions, pooling and interpolation by the taps of their kernels.

Convolutions are counted densely: taps on padding are multiplied like all others. Where windows overlap, FFTs and
algorithms for small tiles (S. Winograd, Arithmetic Complexity of Computations, 1980) skip products, which are counted
as skippable. No algorithm has fewer products than results in each direction.

Pooling costs one FLOP per tap read: taps x outputs. An interpolated output element with t taps costs t multiplications
and t-1 additions. The taps are those of the kernel's name: nearest 1 (a copy, 0 FLOP), linear 2, bilinear 4, bicubic
16, trilinear 8. Antialiasing widens the kernel by the scale; by convention it counts the same. Computing the weights of
the taps is not counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import sympy

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, Uncountable, attr, computes, is_complex, out_elements, result, tensor
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.matmul import mac
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import numel, prod, total


@operator_rule("conv1d", "conv2d", "conv3d")
def convolution(op: OpCall) -> OpCost:
    """Count 2 * outputs * (C_in/groups * kernel) FLOPs; weight (C_out, C_in/groups, *kernel); bias not counted."""
    weight = tensor(op, "weight", 1)
    return _cost(op, weight, out_elements(op), *weight.shape[1:])


@operator_rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(op: OpCall) -> OpCost:
    """Count 2 * inputs * (C_out/groups * kernel) FLOPs; weight (C_in, C_out/groups, *kernel)."""
    weight = tensor(op, "weight", 1)
    return _cost(op, weight, numel(tensor(op, "input", 0)), *weight.shape[1:])


@operator_rule("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution")
def general_convolution(op: OpCall) -> OpCost:
    """Count as ``conv2d``; as ``conv_transpose2d`` if ``transposed`` is set."""
    return transposed_convolution(op) if attr(op, "transposed", default=False) else convolution(op)


def _cost(op: OpCall, weight: Value, elements: Size, channels: Size, *kernel: Size) -> OpCost:
    """Return the cost if each of ``elements`` is multiplied by ``channels`` * ``kernel`` weights."""
    flops = prod((mac(op), elements, channels, *kernel))
    taps = _needed_taps(op, weight.shape[2:])
    # Three real products suffice for a complex one, in place of four.
    least = None if taps is None else prod((6 if is_complex(op) else 2, elements, channels, *taps))
    return OpCost(flops, role="matmul", skippable=flops if least is None else total((flops, prod((-1, least)))))


_DEFAULTS: Final = (("stride", 1), ("padding", 0), ("dilation", 1))


def _needed_taps(op: OpCall, kernel: tuple[Any, ...]) -> list[int] | None:
    """Return the fewest products that a result needs in each dimension; ``None`` if it may need none."""
    if not all(isinstance(size, int) for size in kernel):
        return None
    needed = []
    for d, size in enumerate(kernel):
        stride, padding, dilation = (_option(op, name, d, default) for name, default in _DEFAULTS)
        if padding == "same":
            padding = 0 if size == 1 else 1
        if not isinstance(padding, int) or padding > dilation * (size - 1):
            return None
        needed.append(size if size <= stride and dilation == 1 and padding == 0 else 1)
    return needed


def _option(op: OpCall, name: str, d: int, default: int) -> Any:
    """Return an option of a convolution in dimension ``d``."""
    value = attr(op, name, default=default)
    if isinstance(value, list | tuple):
        value = value[d] if len(value) > 1 else value[0]
    return 0 if value == "valid" else value


_NAMES = tuple(f"{kind}_pool{d}d" for kind in ("avg", "max") for d in (1, 2, 3))
_WITH_INDICES = tuple(f"max_pool{d}d_with_indices" for d in (1, 2, 3))


@vector_rule(*_NAMES, *_WITH_INDICES)
def pool(op: OpCall) -> Size:
    """Count kernel taps x outputs: an addition or a comparison each; taps on padding count."""
    kernel: Any = attr(op, "kernel_size")
    if kernel is None:
        raise Uncountable("a pooling without its kernel_size")
    spatial = int(next(c for c in reversed(canonical(op.name).partition("_with_")[0]) if c.isdigit()))
    sides = (kernel,) * spatial if isinstance(kernel, int | sympy.Expr) else tuple(kernel)
    taps = prod(sides * spatial if len(sides) == 1 else sides)
    return prod((taps, out_elements(op)))


@vector_rule(*(f"adaptive_{kind}" for kind in (*_NAMES, *_WITH_INDICES)))
def adaptive(op: OpCall) -> Size:
    """Count taps x outputs; bin i of n over a length m reads floor(i*m/n) to ceil((i+1)*m/n)."""
    before, after = tensor(op, "input", 0).shape, result(op).shape
    return prod(_taps(m, n) for m, n in zip(before, after, strict=True))


def _taps(length: Size, bins: Size) -> Size:
    if bins in (1, length):
        return length
    if isinstance(length, int) and isinstance(bins, int):
        return sum(-(-(i + 1) * length // bins) - i * length // bins for i in range(bins))
    if (sympy.sympify(length) / bins).is_integer:
        return length
    raise Uncountable("adaptive pooling with bins that may overlap at symbolic sizes")


TAPS: Final = {"nearest": 1, "nearest-exact": 1, "linear": 2, "bilinear": 4, "bicubic": 16, "trilinear": 8}

_KERNELS: Final = {
    "upsample_nearest1d": "nearest", "upsample_nearest2d": "nearest", "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest", "_upsample_nearest_exact2d": "nearest",
    "_upsample_nearest_exact3d": "nearest",
    "upsample_linear1d": "linear", "upsample_bilinear2d": "bilinear", "_upsample_bilinear2d_aa": "bilinear",
    "upsample_bicubic2d": "bicubic", "_upsample_bicubic2d_aa": "bicubic", "upsample_trilinear3d": "trilinear",
}  # fmt: skip


def _flops(taps: int) -> int:
    return 2 * taps - 1 if taps > 1 else 0


def _resample(op: OpCall, taps: int) -> OpCost:
    if taps == 1 or not computes(op):
        return OpCost(role="move")
    return OpCost(vector=prod((_flops(taps), out_elements(op))))


for _name, _mode in _KERNELS.items():
    operator_rule(
        _name,
        owner=f"{__name__}.interpolation",
        summary=f"{_flops(TAPS[_mode])} per output element: {TAPS[_mode]} taps",
    )(partial(_resample, taps=TAPS[_mode]))


@operator_rule("interpolate", "upsample")
def interpolate(op: OpCall) -> OpCost:
    """Count by ``mode``: taps multiplications and taps-1 additions per output element; ``area`` is adaptive pooling."""
    mode = attr(op, "mode", default="nearest")
    if mode == "area":
        return adaptive(op)
    if mode not in TAPS:
        raise Uncountable(f"interpolation mode {mode!r}")
    return _resample(op, TAPS[mode])


@operator_rule(
    "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler", "_grid_sampler_2d_cpu_fallback"
)
def grid_sampler(op: OpCall) -> OpCost:
    """Count interpolation at positions in a tensor: taps multiplications and taps-1 additions per output element."""
    modes = ("bilinear", "nearest", "bicubic")
    mode = modes[attr(op, "interpolation_mode", default=0)]
    # ``bilinear`` means trilinear for volumes.
    volume = mode == "bilinear" and len(result(op).shape) == 5
    return _resample(op, TAPS["trilinear" if volume else mode])


@operator_rule("affine_grid_generator")
def affine_grid(op: OpCall) -> OpCost:
    """Count 2 * results * (dimensions + 1) FLOPs: a product of every position (x, y, 1) with the matrix."""
    return OpCost(flops=prod((2, out_elements(op), tensor(op, "theta", 0).shape[-1])), role="matmul")
