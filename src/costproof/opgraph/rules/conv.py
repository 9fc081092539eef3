"""Convolutions, dense count: taps on padding are multiplied like all others.

Skippable is what algorithms for small tiles (S. Winograd, Arithmetic Complexity of Computations, 1980) and transforms
leave out where windows overlap: no algorithm has fewer products than there are results in that direction.
"""

from __future__ import annotations

from typing import Any, Final

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.matmul import mac
from costproof.opgraph.rules.operands import attr, is_complex, out_elements, tensor
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import numel, prod, total


@operator_rule("conv1d", "conv2d", "conv3d")
def convolution(op: OpCall) -> OpCost:
    """2 * outputs * (C_in/groups * kernel); weight (C_out, C_in/groups, *kernel), bias not counted apart."""
    weight = tensor(op, "weight", 1)
    return _cost(op, weight, out_elements(op), *weight.shape[1:])


@operator_rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(op: OpCall) -> OpCost:
    """2 * inputs * (C_out/groups * kernel): each input is spread over it; weight (C_in, C_out/groups, *kernel)."""
    weight = tensor(op, "weight", 1)
    return _cost(op, weight, numel(tensor(op, "input", 0)), *weight.shape[1:])


@operator_rule("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution")
def general_convolution(op: OpCall) -> OpCost:
    """A convolution, or a transposed one when ``transposed`` is set."""
    return transposed_convolution(op) if attr(op, "transposed", default=False) else convolution(op)


def _cost(op: OpCall, weight: Value, meeting: Size, *each: Size) -> OpCost:
    """Return the cost where so many elements meet each of the weights, and what of it may be left out."""
    flops = prod((mac(op), meeting, *each))
    taps = _needed_taps(op, weight.shape[2:])
    # Three real products do for a complex one, in place of four.
    least = None if taps is None else prod((6 if is_complex(op) else 2, meeting, each[0], *taps))
    return OpCost(flops, role="matmul", skippable=flops if least is None else total((flops, prod((-1, least)))))


_USUAL: Final = (("stride", 1), ("padding", 0), ("dilation", 1))


def _needed_taps(op: OpCall, kernel: tuple[Any, ...]) -> list[int] | None:
    """Return how many products a result needs in each direction at least; ``None``: there may be none."""
    if not all(isinstance(size, int) for size in kernel):
        return None
    needed = []
    for d, size in enumerate(kernel):
        stride, padding, dilation = (_along(op, name, d, usual) for name, usual in _USUAL)
        if padding == "same":
            padding = 0 if size == 1 else 1
        if not isinstance(padding, int) or padding > dilation * (size - 1):
            return None
        needed.append(size if size <= stride and dilation == 1 and padding == 0 else 1)
    return needed


def _along(op: OpCall, name: str, d: int, usual: int) -> Any:
    """Return an option of a convolution in one direction."""
    value = attr(op, name, default=usual)
    if isinstance(value, list | tuple):
        value = value[d] if len(value) > 1 else value[0]
    return 0 if value == "valid" else value
