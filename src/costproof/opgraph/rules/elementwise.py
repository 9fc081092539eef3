"""Elementwise arithmetic: one FLOP per output element and primitive, scalars included.

Integer and boolean results are not FLOPs. Comparisons count where an argument is floating point.
Complex arithmetic counts its real operations: add 2, multiply 6 (2 by a real number).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Final

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.operands import (
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
from costproof.opgraph.rules.registry import Rule, operator_rule
from costproof.opgraph.rules.sizes import prod, total

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
) -> Callable[[Callable[[OpCall], Size]], Rule]:
    """Register how many vector FLOPs operators do; where the result is not floating point there are none."""

    def register(count: Callable[[OpCall], Size]) -> Rule:
        @wraps(count)
        def rule(op: OpCall) -> OpCost:
            return OpCost(vector=count(op) if computes(op) else 0)

        return operator_rule(*names, owner=owner, summary=summary)(rule)

    return register


def per_element(op: OpCall, count: int) -> Size:
    """``count`` FLOPs per output element."""
    if is_complex(op):
        raise Uncountable("complex arithmetic without a documented count")
    return prod((count, out_elements(op)))


def register_counts(owner: str, counts: dict[str, tuple[int, str]]) -> None:
    """Register operators by (FLOPs per output element, the primitives behind the number)."""
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
    """1 per output element, complex 2; with a scale ``alpha`` other than 1 a multiplication more."""
    scale = scaling(op, attr(op, "alpha", default=1))
    if scale and is_complex(op) and complex_operands(op) < 2:
        raise Uncountable("complex addition with a scale of what may be real")
    return prod((addition(op) + scale, out_elements(op)))


@vector_rule("mul")
def mul(op: OpCall) -> Size:
    """1 per output element; complex by complex 6, complex by real 2."""
    factors = complex_operands(op) + isinstance(attr(op, "other"), complex)
    return prod((multiplication(op, factors), out_elements(op)))


@vector_rule("diff")
def diff(op: OpCall) -> Size:
    """1 per element of every pass (subtract), complex 2; a pass is one shorter than what it takes.

    The last of n passes leaves m numbers, the one before it m + 1, the first m + n - 1: n m + n (n - 1)/2 together.
    """
    passes, shape = attr(op, "n", default=1), list(result(op).shape)
    dim = attr(op, "dim", default=-1) % len(shape)
    given = total(t.shape[dim] for t in op.tensors)
    if isinstance(given, int):  # there are no more passes than numbers
        passes = min(passes, given)
    left = shape.pop(dim)
    return prod((addition(op), *shape, total((prod((passes, left)), passes * (passes - 1) // 2))))


@vector_rule("polar")
def polar(op: OpCall) -> Size:
    """4 per complex output element: cos, sin, two multiplications."""
    return prod((4, out_elements(op)))


@vector_rule("abs")
def absolute(op: OpCall) -> Size:
    """1 per output element; of a complex number 4: two squares, add, root."""
    return prod((4 if op.tensors[0].dtype.startswith("complex") else 1, out_elements(op)))


@vector_rule("angle")
def angle(op: OpCall) -> Size:
    """1 per output element."""
    return out_elements(op)


@vector_rule("neg")
def neg(op: OpCall) -> Size:
    """1 per output element; complex 2."""
    return prod((addition(op), out_elements(op)))


@vector_rule("addcmul", "addcdiv")
def addcmul(op: OpCall) -> Size:
    """Multiply (or divide) and add: 2 per output element, 3 with a ``value`` other than 1."""
    return per_element(op, 2 if attr(op, "value", default=1) == 1 else 3)


@operator_rule(*_COMPARE)
def compare(op: OpCall) -> OpCost:
    """1 per output element where an argument is floating point."""
    return OpCost(vector=out_elements(op) if reads_floats(op) else 0)


@operator_rule(*_LOGIC)
def logic(op: OpCall) -> OpCost:
    """0: bits and truth values are not FLOPs."""
    return OpCost()


@operator_rule("isin")
def isin(op: OpCall) -> OpCost:
    """0: integers are looked for among others; of floating-point numbers it is unknown how many are compared."""
    if reads_floats(op):
        raise Uncountable("a search for floating-point numbers has no documented count")
    return OpCost()
