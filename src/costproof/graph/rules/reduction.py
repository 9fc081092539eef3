"""Reductions: one FLOP per input element and pass over it."""

from __future__ import annotations

from functools import partial
from typing import Final

from costproof.graph.graph import OpCall, Size
from costproof.graph.rules.cost import OpCost, Uncountable
from costproof.graph.rules.elementwise import vector_rule
from costproof.graph.rules.operands import is_complex, out_elements, tensor
from costproof.graph.rules.registry import operator_rule
from costproof.graph.rules.sizes import numel, prod, total

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
    "trace": (1, 0, "add"),
}


def _reduction(op: OpCall, per_input: int, per_output: int) -> Size:
    if tensor(op, "self", 0).dtype.startswith("complex") and (per_input, per_output) != (1, 0):
        raise Uncountable("complex arithmetic without a documented count")
    read = prod((2 if is_complex(op) else 1, per_input, numel(tensor(op, "self", 0))))
    return total((read, prod((per_output, out_elements(op)))))


for _name, (_input, _output, _what) in _COUNTS.items():
    vector_rule(
        _name,
        owner=f"{__name__}.reductions",
        summary=f"{_input} per input element" + (f", {_output} per result" if _output else "") + f": {_what}",
    )(partial(_reduction, per_input=_input, per_output=_output))


@vector_rule("max", "min")
def extremum(op: OpCall) -> Size:
    """1 per input element; of two tensors, 1 per output element."""
    return out_elements(op) if len(op.tensors) > 1 else numel(op.tensors[0])


@operator_rule("any", "all", "_is_all_true", "_is_any_true", "count_nonzero", "bincount", "histc", "allclose", "equal")
def tests(op: OpCall) -> OpCost:
    """0: counting and testing are bookkeeping."""
    return OpCost(role="move")
