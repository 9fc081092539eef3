"""Count the costs of convolutions, including products with padding.

Where windows overlap, FFTs and algorithms for small tiles (S. Winograd, Arithmetic Complexity of Computations, 1980)
skip products, which are counted as skippable. No algorithm has fewer products than results in each direction.
"""

from __future__ import annotations

from typing import Any, Final

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, attr, is_complex, out_elements, tensor
from costproof.opgraph.rules.matmul import mac
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
    """Return the cost of a convolution that multiplies each of ``elements`` by ``channels`` * ``kernel`` weights."""
    flops = prod((mac(op), elements, channels, *kernel))
    taps = _needed_taps(op, weight.shape[2:])
    # Three real products suffice for a complex one, in place of four.
    least = None if taps is None else prod((6 if is_complex(op) else 2, elements, channels, *taps))
    return OpCost(flops, role="matmul", skippable=flops if least is None else total((flops, prod((-1, least)))))


_DEFAULTS: Final = (("stride", 1), ("padding", 0), ("dilation", 1))


def _needed_taps(op: OpCall, kernel: tuple[Any, ...]) -> list[int] | None:
    """Return the fewest products per result in each dimension; ``None`` if a result may need no product."""
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
    """Return the value of a convolution's option (stride, padding, dilation) in dimension ``d``."""
    value = attr(op, name, default=default)
    if isinstance(value, list | tuple):
        value = value[d] if len(value) > 1 else value[0]
    return 0 if value == "valid" else value
