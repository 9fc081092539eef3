"""Elementwise arithmetic: one FLOP per output element and primitive, scalars included.

Integer and boolean results are not FLOPs. Comparisons count where an argument is floating point.
Complex arithmetic counts its real operations: add 2, multiply 6 (2 by a real number).
"""

from __future__ import annotations

from typing import Final

from costproof.graph.graph import OpCall
from costproof.graph.rules.cost import OpCost, Uncountable
from costproof.graph.rules.operands import attr, computes, out_elements, reads_floats, result
from costproof.graph.rules.registry import Rule, operator_rule
from costproof.graph.rules.sizes import prod

_ONE: Final = (
    "add", "sub", "rsub", "mul", "div", "neg", "pow", "float_power", "square", "sqrt", "rsqrt", "reciprocal",
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "relu", "relu6", "abs",
    "maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max", "floor", "ceil", "round", "trunc",
    "frac", "sign", "sgn", "remainder", "fmod", "floor_divide", "hypot", "copysign",
)  # fmt: skip
_COMPARE: Final = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isclose", "signbit", "heaviside")
_LOGIC: Final = (
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift",
    "logical_and", "logical_or", "logical_xor", "logical_not",
)  # fmt: skip


def per_element(count: int) -> Rule:
    """A rule of ``count`` FLOPs per output element of a floating-point result."""

    def rule(op: OpCall) -> OpCost:
        if not computes(op):
            return OpCost()
        if result(op).dtype.startswith("complex"):
            raise Uncountable("complex arithmetic without a documented count")
        return OpCost(vector=prod((count, out_elements(op))))

    return rule


def register_counts(owner: str, counts: dict[str, tuple[int, str]]) -> None:
    """Register operators by (FLOPs per output element, the primitives behind the number)."""
    for name, (count, primitives) in counts.items():
        operator_rule(name, owner=owner, summary=f"{count} per output element: {primitives}")(per_element(count))


register_counts(
    f"{__name__}.unary_and_binary",
    {name: (1, name) for name in _ONE if name not in ("add", "sub", "rsub", "mul", "neg")},
)
register_counts(
    f"{__name__}.composed",
    {
        "lerp": (3, "subtract, multiply, add"),
        "polar": (4, "cos, sin, two multiplications"),
        "deg2rad": (1, "multiply"),
        "rad2deg": (1, "multiply"),
        "sinc": (3, "multiply, sin, divide"),
        "xlogy": (2, "log, multiply"),
        "diff": (1, "subtract"),
    },
)


@operator_rule("add", "sub", "rsub")
def add(op: OpCall) -> OpCost:
    """1 per output element, 2 with a scale ``alpha`` other than 1; complex 2."""
    if not computes(op):
        return OpCost()
    scaled = attr(op, "alpha", default=1) != 1
    if result(op).dtype.startswith("complex"):
        if scaled:
            raise Uncountable("complex addition with a scale")
        return OpCost(vector=prod((2, out_elements(op))))
    return OpCost(vector=prod((2 if scaled else 1, out_elements(op))))


@operator_rule("mul")
def mul(op: OpCall) -> OpCost:
    """1 per output element; complex by complex 6, complex by real 2."""
    if not computes(op):
        return OpCost()
    count = 1
    if result(op).dtype.startswith("complex"):
        complex_operands = sum(t.dtype.startswith("complex") for t in op.tensors)
        count = 6 if complex_operands > 1 or isinstance(attr(op, "other"), complex) else 2
    return OpCost(vector=prod((count, out_elements(op))))


@operator_rule("neg")
def neg(op: OpCall) -> OpCost:
    """1 per output element; complex 2."""
    if not computes(op):
        return OpCost()
    return OpCost(vector=prod((2 if result(op).dtype.startswith("complex") else 1, out_elements(op))))


@operator_rule("addcmul", "addcdiv")
def addcmul(op: OpCall) -> OpCost:
    """Multiply (or divide) and add: 2 per output element, 3 with a ``value`` other than 1."""
    return per_element(2 if attr(op, "value", default=1) == 1 else 3)(op)


@operator_rule(*_COMPARE)
def compare(op: OpCall) -> OpCost:
    """1 per output element where an argument is floating point."""
    return OpCost(vector=out_elements(op) if reads_floats(op) else 0)


@operator_rule(*_LOGIC)
def logic(op: OpCall) -> OpCost:
    """0: bits and truth values are not FLOPs."""
    return OpCost()
