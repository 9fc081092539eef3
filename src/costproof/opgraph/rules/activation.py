"""Activations, counted by the primitives of their definitions."""

from __future__ import annotations

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.elementwise import per_element, register_counts, vector_rule
from costproof.opgraph.rules.operands import attr, computes
from costproof.opgraph.rules.registry import operator_rule

register_counts(
    f"{__name__}.activations",
    {
        "silu": (2, "sigmoid, multiply"),
        "leaky_relu": (2, "compare, multiply"),
        "rrelu": (2, "compare, multiply"),
        "rrelu_with_noise": (2, "compare, multiply"),
        "prelu": (2, "compare, multiply"),
        "_prelu_kernel": (2, "compare, multiply"),
        "elu": (4, "compare, exp, subtract, multiply"),
        "celu": (5, "compare, divide, exp, subtract, multiply"),
        "selu": (5, "compare, exp, subtract, two multiplications"),
        "hardswish": (4, "add, clamp, multiply, divide"),
        "hardsigmoid": (3, "add, clamp, divide"),
        "threshold": (1, "compare"),
        "hardshrink": (2, "abs, compare"),
        "softshrink": (4, "abs, compare, sign times lambda, subtract"),
        "softplus": (4, "compare with the threshold, exp, add, log"),
        "mish": (6, "softplus (4), tanh, multiply"),
        "softsign": (3, "abs, add, divide"),
        "logsigmoid": (4, "negate, exp, add, log (the sign folds into the sum)"),
        "log_sigmoid": (4, "negate, exp, add, log (the sign folds into the sum)"),
        "log_sigmoid_forward": (4, "negate, exp, add, log (the sign folds into the sum)"),
        "tanhshrink": (2, "tanh, subtract"),
        "glu": (2, "sigmoid and multiply on half of the input"),
        "logit": (3, "subtract, divide, log"),
    },
)


@vector_rule("gelu")
def gelu(op: OpCall) -> Size:
    """5 per element with erf (x*0.5*(1+erf(x/sqrt 2))), 8 with tanh (0.5x*(1+tanh(c*(x+a*x^3))))."""
    return per_element(op, 8 if attr(op, "approximate", default="none") == "tanh" else 5)


@operator_rule("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout")
def dropout(op: OpCall) -> OpCost:
    """A no-op in inference; in training 2 per element: mask, scale."""
    return _dropout(op, training=attr(op, "training", "train", default=False))


@operator_rule("native_dropout")
def native_dropout(op: OpCall) -> OpCost:
    """As dropout; without a word on it, it trains."""
    return _dropout(op, training=attr(op, "train", default=True))


def _dropout(op: OpCall, *, training: bool) -> OpCost:
    if not training or attr(op, "p", default=0.5) == 0 or not computes(op):
        return OpCost(role="alias")
    return OpCost(vector=per_element(op, 2))
