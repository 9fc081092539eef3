"""Interpolation: an output element with t taps costs t multiplications and t-1 additions.

The taps are those of the kernel's name: nearest 1 (a copy, 0 FLOP), linear 2, bilinear 4, bicubic 16,
trilinear 8. Antialiasing widens the kernel by the scale; by convention it counts the same. Computing
the weights of the taps is not counted.
"""

from __future__ import annotations

from typing import Final

from costproof.graph.graph import OpCall
from costproof.graph.rules.cost import OpCost, Uncountable
from costproof.graph.rules.operands import attr, computes, out_elements
from costproof.graph.rules.pool import adaptive
from costproof.graph.rules.registry import Rule, operator_rule
from costproof.graph.rules.sizes import prod

TAPS: Final = {"nearest": 1, "nearest-exact": 1, "linear": 2, "bilinear": 4, "bicubic": 16, "trilinear": 8}

_KERNELS: Final = {
    "upsample_nearest1d": "nearest", "upsample_nearest2d": "nearest", "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest", "_upsample_nearest_exact2d": "nearest",
    "_upsample_nearest_exact3d": "nearest",
    "upsample_linear1d": "linear", "upsample_bilinear2d": "bilinear", "_upsample_bilinear2d_aa": "bilinear",
    "upsample_bicubic2d": "bicubic", "_upsample_bicubic2d_aa": "bicubic", "upsample_trilinear3d": "trilinear",
}  # fmt: skip


def _resample(mode: str) -> Rule:
    flops = 2 * TAPS[mode] - 1 if TAPS[mode] > 1 else 0

    def rule(op: OpCall) -> OpCost:
        if flops == 0 or not computes(op):
            return OpCost(role="move")
        return OpCost(vector=prod((flops, out_elements(op))))

    return rule


_BY_MODE: Final = {mode: _resample(mode) for mode in TAPS}

for _name, _mode in _KERNELS.items():
    _taps = TAPS[_mode]
    operator_rule(
        _name,
        owner=f"{__name__}.interpolation",
        summary=f"{2 * _taps - 1 if _taps > 1 else 0} per output element: {_taps} taps",
    )(_BY_MODE[_mode])


@operator_rule("interpolate", "upsample")
def interpolate(op: OpCall) -> OpCost:
    """By its ``mode``: taps multiplications and taps-1 additions per output element; ``area`` is adaptive pooling."""
    mode = attr(op, "mode", default="nearest")
    if mode == "area":
        return adaptive(op)
    if mode not in _BY_MODE:
        raise Uncountable(f"interpolation mode {mode!r}")
    return _BY_MODE[mode](op)
