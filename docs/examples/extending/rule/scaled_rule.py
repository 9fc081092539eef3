"""The rule for the operator. It needs no torch: rules are loaded wherever a graph is costed."""

import costproof
from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.sizes import numel


@costproof.operator_rule("scaled::matmul")
def scaled_matmul(op: OpCall) -> OpCost:
    """2 rows in out, and one multiplication per result."""
    x, w = op.tensors
    return OpCost(flops=2 * x.shape[0] * w.shape[0] * w.shape[1], vector=numel(op.outputs[0]), role="matmul")
