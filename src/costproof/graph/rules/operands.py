"""Finding an operator's tensors and options, whichever source wrote the call down."""

from __future__ import annotations

from typing import Any

from costproof.graph.graph import OpCall, Size, Value
from costproof.graph.rules.cost import Uncountable
from costproof.graph.rules.sizes import numel


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


def reads_floats(op: OpCall) -> bool:
    """Whether any argument is floating point (comparisons, argmax: the result itself is not)."""
    return any(t.floating for t in op.tensors)


def out_elements(op: OpCall) -> Size:
    """Elements of the first output."""
    return numel(result(op))
