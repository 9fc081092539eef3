"""Finding an operator's tensors and options, whichever source wrote the call down."""

from __future__ import annotations

from typing import Any

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import Uncountable
from costproof.opgraph.rules.sizes import numel


def tensor(op: OpCall, name: str, position: int) -> Value:
    """A tensor argument that the operator must have.

    Raises:
        Uncountable: the call does not have it.
    """
    found = optional(op, name, position)
    if found is None:
        raise Uncountable(f"no tensor argument {name!r}")
    return found


def optional(op: OpCall, name: str, position: int) -> Value | None:
    """A tensor argument by name, else by its place among the tensors."""
    if name in op.names:
        return op.names[name]
    return op.tensors[position] if position < len(op.tensors) else None


def has(op: OpCall, name: str, position: int) -> bool:
    """Whether an optional tensor argument is given.

    Where the source knows names, they decide; a tensor at ``position`` may be another one then.
    """
    return name in op.names if op.names else position < len(op.tensors)


def result(op: OpCall) -> Value:
    """The first output; of an in-place call that returned nothing, its first argument."""
    if not op.outputs and not op.tensors:
        raise Uncountable("the call has no output")
    return (op.outputs or op.tensors)[0]


def attr(op: OpCall, *names: str, default: Any = None) -> Any:
    """The first option of these names that is set."""
    for name in names:
        value = op.attrs.get(name)
        if value is not None:
            return value
    return default


def computes(op: OpCall) -> bool:
    """Whether the result is floating point: integer and boolean arithmetic is not a FLOP."""
    return result(op).floating


def is_complex(op: OpCall) -> bool:
    """Whether the result is complex."""
    return result(op).dtype.startswith("complex")


def addition(op: OpCall) -> int:
    """FLOPs of one addition in the arithmetic of the result: 1, of complex numbers 2."""
    return 2 if is_complex(op) else 1


def multiplication(op: OpCall, complex_factors: int = 2) -> int:
    """FLOPs of one product in the arithmetic of the result: 1; of complex numbers 6, of a complex one and a real one 2.

    Args:
        complex_factors: how many of the two factors are complex, where the result is.
    """
    if not is_complex(op):
        return 1
    return 6 if complex_factors > 1 else 2


def scaling(op: OpCall, by: Any) -> int:
    """FLOPs of a product of an element and a number in the arithmetic of the result; none where the number is 1."""
    return 0 if by == 1 else multiplication(op, 1 + isinstance(by, complex))


def complex_operands(op: OpCall) -> int:
    """How many of the tensors are complex."""
    return sum(t.dtype.startswith("complex") for t in op.tensors)


def reads_floats(op: OpCall) -> bool:
    """Whether any argument is floating point (comparisons, argmax: the result itself is not)."""
    return any(t.floating for t in op.tensors)


def out_elements(op: OpCall) -> Size:
    """Elements of the first output."""
    return numel(result(op))
