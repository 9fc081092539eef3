"""Reductions: one FLOP per input element and pass over it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.operands import (
    addition,
    attr,
    computes,
    multiplication,
    out_elements,
    reads_floats,
    tensor,
)
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import broadcast, numel, prod, smaller, total

_COUNTS: Final = {
    "sum": (1, 0, "add"),
    "nansum": (2, 0, "compare, add"),
    "prod": (1, 0, "multiply"),
    "mean": (1, 0, "add; the division per row is not counted apart"),
    "amax": (1, 0, "compare"),
    "amin": (1, 0, "compare"),
    "aminmax": (2, 0, "two comparisons"),
    "cumsum": (1, 0, "add"),
    "cumprod": (1, 0, "multiply"),
    "cummax": (1, 0, "compare"),
    "cummin": (1, 0, "compare"),
    "logcumsumexp": (4, 0, "compare, exp, add, log"),
    "logsumexp": (4, 2, "max, subtract, exp, sum; per result log, add"),
    "var": (4, 0, "mean, subtract, square, mean"),
    "var_mean": (4, 0, "mean, subtract, square, mean"),
    "std": (4, 1, "mean, subtract, square, mean; per result a root"),
    "std_mean": (4, 1, "mean, subtract, square, mean; per result a root"),
}
_PRODUCTS: Final = ("prod", "cumprod")
"""Of the reductions, those that multiply."""


def _reduction(op: OpCall, per_input: int, per_output: int, step: Callable[[OpCall], int]) -> Size:
    if tensor(op, "self", 0).dtype.startswith("complex") and (per_input, per_output) != (1, 0):
        raise Uncountable("complex arithmetic without a documented count")
    read = prod((step(op), per_input, numel(tensor(op, "self", 0))))
    return total((read, prod((per_output, out_elements(op)))))


for _name, (_input, _output, _what) in _COUNTS.items():
    _step = multiplication if _name in _PRODUCTS else addition
    vector_rule(
        _name,
        owner=f"{__name__}.reductions",
        summary=f"{_input} per input element" + (f", {_output} per result" if _output else "") + f": {_what}",
    )(partial(_reduction, per_input=_input, per_output=_output, step=_step))


@vector_rule("trace")
def trace(op: OpCall) -> Size:
    """1 per element of the diagonal: add."""
    return prod((addition(op), smaller(*tensor(op, "self", 0).shape)))


@vector_rule("max", "min")
def extremum(op: OpCall) -> Size:
    """1 per input element; of two tensors, 1 per output element."""
    return out_elements(op) if len(op.tensors) > 1 else numel(op.tensors[0])


@operator_rule("any", "all", "_is_all_true", "_is_any_true", "count_nonzero")
def tests(op: OpCall) -> OpCost:
    """1 per input element that is floating point (compare with 0); truth values and their number are bookkeeping."""
    return OpCost(vector=numel(op.tensors[0]) if reads_floats(op) else 0, role="move")


@operator_rule("allclose", "equal")
def same(op: OpCall) -> OpCost:
    """1 per pair of elements where one is floating point (compare)."""
    pairs = prod(broadcast(op.tensors[0].shape, op.tensors[1].shape))
    return OpCost(vector=pairs if reads_floats(op) else 0, role="move")


@operator_rule("bincount")
def bincount(op: OpCall) -> OpCost:
    """1 per weight, which is added where its number says; without weights integers are counted, 0."""
    return OpCost(vector=numel(op.tensors[0]) if computes(op) else 0, role="move")


@operator_rule("histc")
def histogram(op: OpCall) -> OpCost:
    """5 per input element: compared with both ends, subtract, multiply, add; 2 more where no ends are given.

    The ends are the smallest and the largest element then.
    """
    given = attr(op, "min", default=0) != attr(op, "max", default=0)
    return OpCost(vector=prod((5 if given else 7, numel(op.tensors[0]))) if computes(op) else 0, role="move")
