"""Count the costs of pooling and interpolation by the taps (input elements per output) of their kernels.

Pooling costs one FLOP per tap read: taps x outputs. An interpolated output element with t taps costs t multiplications
and t-1 additions. The taps are those of the kernel's name: nearest 1 (a copy, 0 FLOP), linear 2, bilinear 4, bicubic
16, trilinear 8. Antialiasing widens the kernel by the scale; by convention it counts the same. Computing the weights of
the taps is not counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import sympy

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import OpCost, Uncountable, attr, computes, out_elements, result, tensor
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod

_NAMES = tuple(f"{kind}_pool{d}d" for kind in ("avg", "max") for d in (1, 2, 3))
_WITH_INDICES = tuple(f"max_pool{d}d_with_indices" for d in (1, 2, 3))


@vector_rule(*_NAMES, *_WITH_INDICES)
def pool(op: OpCall) -> Size:
    """Count taps of the kernel x outputs: an addition or a comparison each; taps on padding count."""
    kernel: Any = attr(op, "kernel_size")
    if kernel is None:
        raise Uncountable("a pooling without its kernel_size")
    spatial = int(next(c for c in reversed(canonical(op.name).partition("_with_")[0]) if c.isdigit()))
    sides = (kernel,) * spatial if isinstance(kernel, int | sympy.Expr) else tuple(kernel)
    taps = prod(sides * spatial if len(sides) == 1 else sides)
    return prod((taps, out_elements(op)))


@vector_rule(*(f"adaptive_{kind}" for kind in (*_NAMES, *_WITH_INDICES)))
def adaptive(op: OpCall) -> Size:
    """Count taps x outputs; bin i of n over a length m covers floor(i*m/n) to ceil((i+1)*m/n)."""
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
    """Count 2 * results * (dimensions + 1) FLOPs: each position (x, y, 1) is multiplied by the matrix."""
    return OpCost(flops=prod((2, out_elements(op), tensor(op, "theta", 0).shape[-1])), role="matmul")
