"""Random numbers by what tensors say: a draw itself is 0, as that of ``rand`` is; what is done with it counts.

Where a tensor lends its shape alone, or is written over, nothing is read of it.
"""

from __future__ import annotations

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import overwrites
from costproof.opgraph.rules.operands import attr, out_elements
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod


def _drawn(op: OpCall, reads: tuple[Value, ...], each: int) -> OpCost:
    """Draws that read these tensors, with so many FLOPs per output element; without any they are made from nothing."""
    if not reads:
        return OpCost(role="factory", reads=())
    count: Size = prod((each, out_elements(op)))
    return OpCost(vector=count, role="vector" if each else "move", reads=reads)


@operator_rule("bernoulli")
def bernoulli(op: OpCall) -> OpCost:
    """1 per output element: a draw is compared with the probability that a tensor holds; 0 with a number for all."""
    apart = len(op.tensors) > 1 or attr(op, "p") is not None or overwrites(op)
    return _drawn(op, op.tensors[1:] if apart else op.tensors, 1)


@operator_rule("normal")
def normal(op: OpCall) -> OpCost:
    """Mean + deviation * draw: 2 per output element where the deviations are a tensor, 1 where the means alone are."""
    return _drawn(op, () if overwrites(op) else op.tensors, 2 if len(op.tensors) > 1 or "std" in op.names else 1)


@operator_rule("poisson", "binomial", "_standard_gamma", "_sample_dirichlet")
def draw(op: OpCall) -> OpCost:
    """0: a draw, by the parameters that a tensor holds."""
    return _drawn(op, op.tensors, 0)
