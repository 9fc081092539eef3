"""Count the costs of reductions, normalizations, softmax, sorting and losses.

A reduction is one FLOP per input element and pass. Layer norm per element: mean, subtract, square, mean, normalize,
scale, shift = 7; per row: add epsilon, rsqrt = 2. RMS norm per element: square, mean, multiply, scale = 4; per row 2.
Softmax per element: max, subtract, exp, sum, divide = 5. Sorting and selecting count one comparison per input element
by convention; integers are not FLOPs. The division of a mean is not counted separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.rules.cost import (
    OpCost,
    Uncountable,
    addition,
    attr,
    complex_operands,
    computes,
    has,
    multiplication,
    out_elements,
    reads_floats,
    result,
    tensor,
)
from costproof.opgraph.rules.elementwise import register_counts, vector_rule
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import graph_transform, operator_rule
from costproof.opgraph.rules.sizes import broadcast, numel, prod, smaller, total

_CASTS: Final = frozenset({"to", "float", "double", "half", "bfloat16", "type"})
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
"""Reductions that multiply elements, such as ``prod``."""


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
    """Count 1 FLOP per element of the diagonal (add)."""
    return prod((addition(op), smaller(*tensor(op, "self", 0).shape)))


@vector_rule("max", "min")
def extremum(op: OpCall) -> Size:
    """Count 1 FLOP per input element of a minimum or maximum; of two tensors, 1 per output element."""
    return out_elements(op) if len(op.tensors) > 1 else numel(op.tensors[0])


@operator_rule("any", "all", "_is_all_true", "_is_any_true", "count_nonzero")
def predicates(op: OpCall) -> OpCost:
    """Count 1 FLOP per input element if it is floating point (compare with 0); integers and booleans are not FLOPs."""
    return OpCost(vector=numel(op.tensors[0]) if reads_floats(op) else 0, role="move")


@operator_rule("allclose", "equal")
def equality(op: OpCall) -> OpCost:
    """Count 1 FLOP per pair of elements if one is floating point (compare)."""
    pairs = prod(broadcast(op.tensors[0].shape, op.tensors[1].shape))
    return OpCost(vector=pairs if reads_floats(op) else 0, role="move")


@operator_rule("bincount")
def bincount(op: OpCall) -> OpCost:
    """Count 1 FLOP per weight (add); 0 without weights, since counting integers is not FLOPs."""
    return OpCost(vector=numel(op.tensors[0]) if computes(op) else 0, role="move")


@operator_rule("histc")
def histogram(op: OpCall) -> OpCost:
    """Count 5 FLOPs per input element: compare with both ends, subtract, multiply, add; 7 if the call states no range.

    The range is then found from the smallest and the largest element. 0 for integers, see :func:`counted_integers`.
    """
    given = attr(op, "min", default=0) != attr(op, "max", default=0)
    floats = computes(op) and reads_floats(op)
    return OpCost(vector=prod((5 if given else 7, numel(op.tensors[0]))) if floats else 0, role="move")


@graph_transform
def counted_integers(graph: Graph) -> Graph:
    """Make ``histc`` read integers directly instead of their cast to floating point.

    On a CPU models cast first, since its kernel takes no integers; a GPU needs no cast. Both count the same.
    """
    names = {op.label: canonical(op.name) for op in graph.ops}
    if "histc" not in names.values():
        return graph
    integers = {
        op.outputs[0].id: op.tensors[0]
        for op in graph.ops
        if names[op.label] in _CASTS and len(op.tensors) == 1 and not op.tensors[0].floating
    }

    def before_cast(value: Value) -> Value:
        return integers.get(value.id, value)

    return replace(graph, ops=tuple(op.reading(before_cast) if names[op.label] == "histc" else op for op in graph.ops))


register_counts(
    f"{__name__}.softmax_family",
    {
        "softmax": (5, "max, subtract, exp, sum, divide"),
        "_softmax": (5, "max, subtract, exp, sum, divide"),
        "_safe_softmax": (5, "max, subtract, exp, sum, divide"),
        "softmin": (6, "negate, and a softmax"),
        "log_softmax": (6, "max, subtract, exp, sum, log, subtract"),
        "_log_softmax": (6, "max, subtract, exp, sum, log, subtract"),
    },
)

_TRAINS: Final = "_batch_norm_with_update"


def _affine(op: OpCall) -> int:
    """Return the FLOPs per element of a norm's scale and shift: one for each that is passed."""
    if op.names:
        return int("weight" in op.names) + int("bias" in op.names)
    return min(len(op.tensors) - 1, 2)


def _rows(op: OpCall) -> Size:
    """Return the number of rows: the product of the leading dimensions, which ``normalized_shape`` does not cover."""
    given = attr(op, "normalized_shape")
    if isinstance(given, int):
        width = 1
    elif given is not None:
        width = len(tuple(given))
    elif has(op, "weight", 1):
        width = len(tensor(op, "weight", 1).shape)
    else:
        raise Uncountable("a norm without its normalized_shape")
    return prod(tensor(op, "input", 0).shape[:-width])


def _norm_flops(elements: Size, per_element: int, rows: Size) -> Size:
    return total((prod((per_element, elements)), prod((2, rows))))


@vector_rule("layer_norm", "native_layer_norm")
def layer_norm(op: OpCall) -> Size:
    """Count 5 FLOPs per element, 1 more each for a scale and a shift, 2 per row."""
    return _norm_flops(numel(tensor(op, "input", 0)), 5 + _affine(op), _rows(op))


@vector_rule("rms_norm", "_fused_rms_norm")
def rms_norm(op: OpCall) -> Size:
    """Count 3 FLOPs per element, 1 more for a scale, 2 per row."""
    return _norm_flops(numel(tensor(op, "input", 0)), 3 + min(_affine(op), 1), _rows(op))


@vector_rule("group_norm", "native_group_norm")
def group_norm(op: OpCall) -> Size:
    """Count as layer norm, with N * groups rows."""
    groups = attr(op, "num_groups", "group", "groups")
    if groups is None:
        raise Uncountable("a group norm without its number of groups")
    data = tensor(op, "input", 0)
    return _norm_flops(numel(data), 5 + _affine(op), prod((data.shape[0], groups)))


@vector_rule("instance_norm")
def instance_norm(op: OpCall) -> Size:
    """Count as layer norm, with N * C rows; with stored statistics 3 per element fewer, as batch norm."""
    data = tensor(op, "input", 0)
    made = 3 if attr(op, "use_input_stats", default=True) else 0
    return _norm_flops(numel(data), 2 + made + _affine(op), prod(data.shape[:2]))


@vector_rule(
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    _TRAINS, "_batch_norm_no_update", "cudnn_batch_norm",
)  # fmt: skip
def batch_norm(op: OpCall) -> Size:
    """Count 2 FLOPs per element with stored statistics, 1 more each for a scale and a shift, 2 per channel.

    In training the statistics are computed first: 3 more per element.
    """
    data = tensor(op, "input", 0)
    # One variant is only for training and has no argument for it.
    training = canonical(op.name) == _TRAINS or attr(op, "training", "train", default=False)
    made = 3 if training else 0
    affine = _affine(op) if op.names else 2
    return _norm_flops(numel(data), 2 + made + affine, data.shape[1])


@operator_rule(
    "topk", "sort", "argsort", "msort", "argmax", "argmin", "kthvalue", "median", "nanmedian", "mode",
    "unique", "_unique", "_unique2", "unique_consecutive", "unique_dim", "multinomial",
)  # fmt: skip
def select(op: OpCall) -> OpCost:
    """Count 1 FLOP per input element (compare) if the input is floating point."""
    data = op.tensors[0]
    return OpCost(vector=numel(data) if data.floating else 0)


@operator_rule("searchsorted", "bucketize")
def search(op: OpCall) -> OpCost:
    """Count 1 FLOP (compare) per value and bit of the number of boundaries (binary search); 0 for integers."""
    boundaries = op.names.get("sorted_sequence") or op.names.get("boundaries")
    if boundaries is None or not isinstance(boundaries.shape[-1], int):
        raise Uncountable("a search in a sequence whose length is a symbol")
    steps = boundaries.shape[-1].bit_length()
    return OpCost(vector=prod((steps, out_elements(op))) if boundaries.floating else 0)


@operator_rule("mse_loss", "l1_loss")
def elementwise_loss(op: OpCall) -> OpCost:
    """Count 2 FLOPs per element: subtract, and square or absolute value; 1 more for a sum or mean."""
    given, target = tensor(op, "input", 0), tensor(op, "target", 1)
    if complex_operands(op) or given.shape != target.shape or "weight" in op.names or len(op.tensors) > 2:
        raise Uncountable("a loss of complex numbers, of several shapes, or with weights")
    each = 3 if _reduced(op, given.shape) else 2
    return OpCost(vector=prod((each, numel(given))) if computes(op) else 0)


@operator_rule("cross_entropy", "cross_entropy_loss")
def cross_entropy(op: OpCall) -> OpCost:
    """Count 6 FLOPs per element (a log-softmax) for class indices; 1 per row for a sum or mean."""
    given, target = tensor(op, "input", 0), tensor(op, "target", 1)
    if target.floating or len(op.tensors) > 2 or attr(op, "label_smoothing", default=0.0) != 0:
        raise Uncountable("a loss with probabilities, with weights of classes, or with smoothed labels")
    added = numel(target) if _reduced(op, target.shape) else 0
    return OpCost(vector=total((prod((6, numel(given))), added)))


def _reduced(op: OpCall, shape: tuple[Size, ...]) -> bool:
    """Return whether a loss is reduced to one number."""
    reduction = attr(op, "reduction")
    return reduction not in ("none", 0) if reduction is not None else result(op).shape != shape
