"""Normalisations and the softmax family.

Layer norm per element: mean, subtract, square, mean, normalise, scale, shift = 7; per row: add epsilon,
rsqrt = 2. RMS norm per element: square, mean, multiply, scale = 4; per row 2. Softmax per element: max,
subtract, exp, sum, divide = 5.
"""

from __future__ import annotations

from typing import Final

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import Uncountable
from costproof.opgraph.rules.elementwise import register_counts, vector_rule
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.operands import attr, has, tensor
from costproof.opgraph.rules.sizes import numel, prod, total

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
    """FLOPs per element for scale and shift: how many of the two there are."""
    if op.names:
        return int("weight" in op.names) + int("bias" in op.names)
    return min(len(op.tensors) - 1, 2)


def _rows(op: OpCall) -> Size:
    """Elements of the leading dimensions: those that ``normalized_shape`` does not cover."""
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


def _cost(elements: Size, per_element: int, rows: Size) -> Size:
    return total((prod((per_element, elements)), prod((2, rows))))


@vector_rule("layer_norm", "native_layer_norm")
def layer_norm(op: OpCall) -> Size:
    """5 per element, 1 more each for a scale and a shift, 2 per row."""
    return _cost(numel(tensor(op, "input", 0)), 5 + _affine(op), _rows(op))


@vector_rule("rms_norm", "_fused_rms_norm")
def rms_norm(op: OpCall) -> Size:
    """3 per element, 1 more for a scale, 2 per row."""
    return _cost(numel(tensor(op, "input", 0)), 3 + min(_affine(op), 1), _rows(op))


@vector_rule("group_norm", "native_group_norm")
def group_norm(op: OpCall) -> Size:
    """As layer norm, with N * groups rows."""
    groups = attr(op, "num_groups", "group", "groups")
    if groups is None:
        raise Uncountable("a group norm without its number of groups")
    data = tensor(op, "input", 0)
    return _cost(numel(data), 5 + _affine(op), prod((data.shape[0], groups)))


@vector_rule("instance_norm")
def instance_norm(op: OpCall) -> Size:
    """As layer norm, with N * C rows; with stored statistics 3 per element fewer, as batch norm."""
    data = tensor(op, "input", 0)
    made = 3 if attr(op, "use_input_stats", default=True) else 0
    return _cost(numel(data), 2 + made + _affine(op), prod(data.shape[:2]))


@vector_rule(
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    _TRAINS, "_batch_norm_no_update", "cudnn_batch_norm",
)  # fmt: skip
def batch_norm(op: OpCall) -> Size:
    """With stored statistics 2 per element (subtract, normalise), 1 more each for a scale and a shift, 2 per channel.

    In training the statistics are made first: 3 more per element.
    """
    data = tensor(op, "input", 0)
    # One variant is for training alone, and has no argument that says so.
    training = canonical(op.name) == _TRAINS or attr(op, "training", "train", default=False)
    made = 3 if training else 0
    affine = _affine(op) if op.names else 2
    return _cost(numel(data), 2 + made + affine, data.shape[1])
