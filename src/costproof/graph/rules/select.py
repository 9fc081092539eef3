"""Sorting and selecting: by convention one comparison per input element; integers are not FLOPs."""

from __future__ import annotations

from costproof.graph.graph import OpCall
from costproof.graph.rules.cost import OpCost
from costproof.graph.rules.registry import operator_rule
from costproof.graph.rules.sizes import numel


@operator_rule(
    "topk", "sort", "argsort", "msort", "argmax", "argmin", "kthvalue", "median", "nanmedian", "mode",
    "unique", "_unique", "_unique2", "unique_consecutive", "unique_dim",
)  # fmt: skip
def select(op: OpCall) -> OpCost:
    """1 per input element, where the input is floating point."""
    data = op.tensors[0]
    return OpCost(vector=numel(data) if data.floating else 0)
