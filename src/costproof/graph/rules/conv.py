"""Convolutions, dense count: taps on padding are multiplied like all others."""

from __future__ import annotations

from costproof.graph.graph import OpCall
from costproof.graph.rules.cost import OpCost
from costproof.graph.rules.matmul import mac
from costproof.graph.rules.operands import attr, out_elements, tensor
from costproof.graph.rules.registry import operator_rule
from costproof.graph.rules.sizes import numel, prod


@operator_rule("conv1d", "conv2d", "conv3d")
def convolution(op: OpCall) -> OpCost:
    """2 * outputs * (C_in/groups * kernel); weight (C_out, C_in/groups, *kernel), bias not counted apart."""
    weight = tensor(op, "weight", 1)
    return OpCost(flops=prod((mac(op), out_elements(op), *weight.shape[1:])), role="matmul")


@operator_rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(op: OpCall) -> OpCost:
    """2 * inputs * (C_out/groups * kernel): each input is spread over it; weight (C_in, C_out/groups, *kernel)."""
    weight = tensor(op, "weight", 1)
    return OpCost(flops=prod((mac(op), numel(tensor(op, "input", 0)), *weight.shape[1:])), role="matmul")


@operator_rule("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution")
def general_convolution(op: OpCall) -> OpCost:
    """A convolution, or a transposed one when ``transposed`` is set."""
    return transposed_convolution(op) if attr(op, "transposed", default=False) else convolution(op)
