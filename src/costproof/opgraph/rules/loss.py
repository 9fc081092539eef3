"""Losses: what a model computes where it is given the answers. A mean's division is not counted apart, as elsewhere."""

from __future__ import annotations

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.operands import attr, complex_operands, computes, result, tensor
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import numel, prod, total


@operator_rule("mse_loss", "l1_loss")
def of_differences(op: OpCall) -> OpCost:
    """Per element 2: subtract, and square or absolute value; 1 more for their sum or mean."""
    given, target = tensor(op, "input", 0), tensor(op, "target", 1)
    if complex_operands(op) or given.shape != target.shape or "weight" in op.names or len(op.tensors) > 2:
        raise Uncountable("a loss of complex numbers, of several shapes, or with weights")
    each = 3 if _reduced(op, given.shape) else 2
    return OpCost(vector=prod((each, numel(given))) if computes(op) else 0)


@operator_rule("cross_entropy", "cross_entropy_loss")
def cross_entropy(op: OpCall) -> OpCost:
    """Of classes that are numbers: 6 per element, a log-softmax; 1 per row for their sum or mean."""
    given, target = tensor(op, "input", 0), tensor(op, "target", 1)
    if target.floating or len(op.tensors) > 2 or attr(op, "label_smoothing", default=0.0) != 0:
        raise Uncountable("a loss with probabilities, with weights of classes, or with smoothed labels")
    added = numel(target) if _reduced(op, target.shape) else 0
    return OpCost(vector=total((prod((6, numel(given))), added)))


def _reduced(op: OpCall, shape: tuple[Size, ...]) -> bool:
    """Whether one number is made of all."""
    said = attr(op, "reduction")
    return said not in ("none", 0) if said is not None else result(op).shape != shape
