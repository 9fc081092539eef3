"""Sorting and selecting: by convention one comparison per input element; integers are not FLOPs."""

from __future__ import annotations

from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.operands import out_elements
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import numel, prod


@operator_rule(
    "topk", "sort", "argsort", "msort", "argmax", "argmin", "kthvalue", "median", "nanmedian", "mode",
    "unique", "_unique", "_unique2", "unique_consecutive", "unique_dim", "multinomial",
)  # fmt: skip
def select(op: OpCall) -> OpCost:
    """1 per input element, where the input is floating point."""
    data = op.tensors[0]
    return OpCost(vector=numel(data) if data.floating else 0)


@operator_rule("searchsorted", "bucketize")
def search(op: OpCall) -> OpCost:
    """A binary search per value: as many comparisons as the number of boundaries has bits; integers are not FLOPs."""
    sorted_ones = op.names.get("sorted_sequence") or op.names.get("boundaries")
    if sorted_ones is None or not isinstance(sorted_ones.shape[-1], int):
        raise Uncountable("a search in a sequence whose length is a symbol")
    steps = sorted_ones.shape[-1].bit_length()
    return OpCost(vector=prod((steps, out_elements(op))) if sorted_ones.floating else 0)
