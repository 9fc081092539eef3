"""Interpolation: an output element with t taps costs t multiplications and t-1 additions.

The taps are those of the kernel's name: nearest 1 (a copy, 0 FLOP), linear 2, bilinear 4, bicubic 16,
trilinear 8. Antialiasing widens the kernel by the scale; by convention it counts the same. Computing
the weights of the taps is not counted.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.operands import attr, computes, out_elements, result, tensor
from costproof.opgraph.rules.pool import adaptive
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod

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
    """By its ``mode``: taps multiplications and taps-1 additions per output element; ``area`` is adaptive pooling."""
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
    """Interpolation at places that a tensor names: taps multiplications and taps-1 additions per output element."""
    modes = ("bilinear", "nearest", "bicubic")
    mode = modes[attr(op, "interpolation_mode", default=0)]
    # ``bilinear`` of a volume is trilinear.
    volume = mode == "bilinear" and len(result(op).shape) == 5
    return _resample(op, TAPS["trilinear" if volume else mode])


@operator_rule("affine_grid_generator")
def affine_grid(op: OpCall) -> OpCost:
    """A product of every position (x, y, 1) and the matrix: 2 * results * (dimensions + 1)."""
    return OpCost(flops=prod((2, out_elements(op), tensor(op, "theta", 0).shape[-1])), role="matmul")
