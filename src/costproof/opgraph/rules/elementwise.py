"""Count the costs of elementwise arithmetic, activations and random draws.

A primitive operation is one FLOP per output element. Scalars count as operands. Integer and boolean results are not
FLOPs; comparisons count where an argument is floating point. Complex arithmetic counts its real operations: add 2,
multiply 6 (2 by a real number). Activations are counted by the primitives of their definitions. A random draw itself is
0, as in ``rand``; arithmetic with the result counts. Tensors that only give their shape, or that are overwritten, are
not read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Final

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import (
    OpCost,
    Uncountable,
    addition,
    attr,
    complex_operands,
    computes,
    is_complex,
    multiplication,
    out_elements,
    reads_floats,
    result,
    scaling,
)
from costproof.opgraph.rules.names import overwrites
from costproof.opgraph.rules.registry import RuleFunction, operator_rule
from costproof.opgraph.rules.sizes import numel, prod, total

_ONE: Final = (
    "div", "pow", "float_power", "square", "sqrt", "rsqrt", "reciprocal",
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "relu", "relu6",
    "maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max", "floor", "ceil", "round", "trunc",
    "frac", "sign", "sgn", "remainder", "fmod", "floor_divide", "hypot", "copysign",
)  # fmt: skip
_COMPARE: Final = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isclose", "signbit", "heaviside")
_LOGIC: Final = (
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift",
    "logical_and", "logical_or", "logical_xor", "logical_not",
)  # fmt: skip


def vector_rule(
    *names: str, owner: str | None = None, summary: str | None = None
) -> Callable[[Callable[[OpCall], Size]], RuleFunction]:
    """Register a function that counts vector FLOPs; results that are not floating point count 0."""

    def register(count: Callable[[OpCall], Size]) -> RuleFunction:
        @wraps(count)
        def rule(op: OpCall) -> OpCost:
            return OpCost(vector=count(op) if computes(op) else 0)

        return operator_rule(*names, owner=owner, summary=summary)(rule)

    return register


def per_element(op: OpCall, count: int) -> Size:
    """Return a cost of ``count`` FLOPs per output element; raise ``Uncountable`` for complex results."""
    if is_complex(op):
        raise Uncountable("complex arithmetic without a documented count")
    return prod((count, out_elements(op)))


def register_counts(owner: str, counts: dict[str, tuple[int, str]]) -> None:
    """Register elementwise operators, given (FLOPs per output element, names of the operations) by operator."""
    for name, (count, primitives) in counts.items():
        summary = f"{count} per output element: {primitives}"
        vector_rule(name, owner=owner, summary=summary)(partial(per_element, count=count))


register_counts(f"{__name__}.unary_and_binary", {name: (1, name) for name in _ONE})
register_counts(
    f"{__name__}.composed",
    {
        "lerp": (3, "subtract, multiply, add"),
        "deg2rad": (1, "multiply"),
        "rad2deg": (1, "multiply"),
        "sinc": (3, "multiply, sin, divide"),
        "xlogy": (2, "log, multiply"),
        "logaddexp": (4, "two exponentials, add, log"),
        "linalg_cross": (3, "two multiplications, subtract"),
        "cross": (3, "two multiplications, subtract"),
        "nan_to_num": (3, "three comparisons"),
    },
)


@vector_rule("add", "sub", "rsub")
def add(op: OpCall) -> Size:
    """Count 1 FLOP per output element, 2 if complex; a scale ``alpha`` other than 1 adds a multiplication."""
    scale = scaling(op, attr(op, "alpha", default=1))
    if scale and is_complex(op) and complex_operands(op) < 2:
        raise Uncountable("a complex addition with a scale, whose operands may be real")
    return prod((addition(op) + scale, out_elements(op)))


@vector_rule("mul")
def mul(op: OpCall) -> Size:
    """Count 1 FLOP per output element; 6 for complex by complex, 2 for complex by real."""
    factors = complex_operands(op) + isinstance(attr(op, "other"), complex)
    return prod((multiplication(op, factors), out_elements(op)))


@vector_rule("ldexp")
def ldexp(op: OpCall) -> Size:
    """Count x 2^n: a power per element of n, and a multiplication per output element."""
    return total((numel(op.tensors[1]), out_elements(op)))


@vector_rule("diff")
def diff(op: OpCall) -> Size:
    """Count 1 FLOP per result of each pass (subtract), 2 if complex; a pass has one result fewer than the one before.

    If the last of n passes has m results, the first has m + n - 1: n m + n (n - 1)/2 together.
    """
    passes, shape = attr(op, "n", default=1), list(result(op).shape)
    dim = attr(op, "dim", default=-1) % len(shape)
    given = total(t.shape[dim] for t in op.tensors)
    if isinstance(given, int):  # at most as many passes as elements
        passes = min(passes, given)
    left = shape.pop(dim)
    return prod((addition(op), *shape, total((prod((passes, left)), passes * (passes - 1) // 2))))


@vector_rule("polar")
def polar(op: OpCall) -> Size:
    """Count 4 FLOPs per complex output element: cos, sin, two multiplications."""
    return prod((4, out_elements(op)))


@vector_rule("abs")
def absolute(op: OpCall) -> Size:
    """Count 1 FLOP per output element; 4 if complex: two squares, an addition, a root."""
    return prod((4 if op.tensors[0].dtype.startswith("complex") else 1, out_elements(op)))


@vector_rule("angle")
def angle(op: OpCall) -> Size:
    """Count 1 FLOP per output element."""
    return out_elements(op)


@vector_rule("neg")
def neg(op: OpCall) -> Size:
    """Count 1 FLOP per output element; 2 if complex."""
    return prod((addition(op), out_elements(op)))


@vector_rule("addcmul", "addcdiv")
def addcmul(op: OpCall) -> Size:
    """Count 2 FLOPs per output element (multiply or divide, and add), 3 with a ``value`` other than 1."""
    return per_element(op, 2 if attr(op, "value", default=1) == 1 else 3)


@operator_rule(*_COMPARE)
def compare(op: OpCall) -> OpCost:
    """Count 1 FLOP per output element if an argument is floating point."""
    return OpCost(vector=out_elements(op) if reads_floats(op) else 0)


@operator_rule(*_LOGIC)
def logic(op: OpCall) -> OpCost:
    """Count 0 FLOPs: operations on bits and truth values are not FLOPs."""
    return OpCost()


@operator_rule("isin")
def isin(op: OpCall) -> OpCost:
    """Count 0 FLOPs for integers; unknown for floating-point numbers, whose comparisons depend on the data."""
    if reads_floats(op):
        raise Uncountable("a search for floating-point numbers has no documented count")
    return OpCost()


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
    """Count 5 FLOPs per element with erf (x*0.5*(1+erf(x/sqrt 2))), 8 with tanh (0.5x*(1+tanh(c*(x+a*x^3))))."""
    return per_element(op, 8 if attr(op, "approximate", default="none") == "tanh" else 5)


@operator_rule("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout")
def dropout(op: OpCall) -> OpCost:
    """Count 0 FLOPs in inference, where it is an alias; 2 per element in training: mask, scale."""
    return _dropout(op, training=attr(op, "training", "train", default=False))


@operator_rule("native_dropout")
def native_dropout(op: OpCall) -> OpCost:
    """Count as dropout, but training is the default."""
    return _dropout(op, training=attr(op, "train", default=True))


def _dropout(op: OpCall, *, training: bool) -> OpCost:
    if not training or attr(op, "p", default=0.5) == 0 or not computes(op):
        return OpCost(role="alias")
    return OpCost(vector=per_element(op, 2))


def _draw_cost(op: OpCall, reads: tuple[Value, ...], each: int) -> OpCost:
    """Return the cost of random draws that read ``reads`` and do ``each`` FLOPs per output element.

    Draws that read no tensor create theirs like a factory.
    """
    if not reads:
        return OpCost(role="factory", reads=())
    count: Size = prod((each, out_elements(op)))
    return OpCost(vector=count, role="vector" if each else "move", reads=reads)


@operator_rule("bernoulli")
def bernoulli(op: OpCall) -> OpCost:
    """Count 1 FLOP per output element if probabilities are a tensor: the draw is compared with them; else 0."""
    apart = len(op.tensors) > 1 or attr(op, "p") is not None or overwrites(op)
    return _draw_cost(op, op.tensors[1:] if apart else op.tensors, 1)


@operator_rule("normal")
def normal(op: OpCall) -> OpCost:
    """Count ``mean + deviation * draw``: 2 per output element if deviations are a tensor, 1 if only means are."""
    return _draw_cost(op, () if overwrites(op) else op.tensors, 2 if len(op.tensors) > 1 or "std" in op.names else 1)


@operator_rule("poisson", "binomial", "_standard_gamma", "_sample_dirichlet")
def draw(op: OpCall) -> OpCost:
    """Count 0 FLOPs for random draws whose parameters are in a tensor."""
    return _draw_cost(op, op.tensors, 0)
