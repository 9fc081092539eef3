"""Define the interface of operator rules: types of costs, and functions that read the arguments of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import sympy

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.sizes import numel, prod

Role = Literal["matmul", "vector", "lookup", "move", "alias", "factory", "free"]
"""Kind of a call by its effect on memory and arithmetic.

``matmul`` and ``vector`` compute. ``lookup`` and ``move`` only read and write. ``alias`` returns its argument in
another shape, order or type and is not work: a reader of the result reads the argument. ``factory`` creates a tensor
without reading one. ``free`` touches no data (assertions, sizes).
"""


ROLES: Final = get_args(Role)


@dataclass(frozen=True, slots=True)
class PartialRead:
    """A read of only some rows of a tensor, such as an embedding table or a stack of expert matrices."""

    value: Value
    elements: Size
    """Number of elements that one call reads."""
    distinct: bool
    """Whether rows read twice are fetched once; then all reads together are at most the whole tensor."""
    rows: Size | None = None
    """For a stack of matrices: rows of the other operand, each multiplied by one of the matrices."""


@dataclass(frozen=True, slots=True)
class ScoreGrid:
    """Shape of the attention scores in a fused call, and the mask over them."""

    grids: Size
    """Number of queries x keys matrices: sequences times query heads."""
    queries: Size
    keys: Size
    width: Size
    """Width of a query plus width of a value."""
    left: int | None = None
    """Keys that a query sees before the one aligned with it; ``None`` for no limit."""
    right: int | None = None
    """Keys that a query sees after the one aligned with it; ``None`` for no limit."""
    at_end: bool = True
    """Whether the last query is aligned with the last key; otherwise the first with the first."""
    mask: Value | None = None
    """Mask tensor."""
    known: bool = True
    """Whether these fields describe the whole mask; false if flags of the call have an unknown meaning."""
    kept: Size | None = None
    """Number of pairs that the mask keeps in all matrices, if the call states it; replaces the fields above."""
    packed: tuple[tuple[int, int], ...] = ()
    """(queries, keys) of each packed sequence; then ``queries`` and ``keys`` are the rows of all sequences, and
    ``grids`` is the number of matrices for each sequence.
    """

    @property
    def pairs(self) -> Size:
        """Return the number of scores in all matrices; there are none between two packed sequences."""
        each = sum(q * k for q, k in self.packed) if self.packed else prod((self.queries, self.keys))
        return prod((self.grids, each))


@dataclass(frozen=True, slots=True)
class OpCost:
    """Cost of one operator call, as integers or, like the shapes, sympy expressions."""

    flops: Size = 0
    """Headline FLOPs: 2 per multiply-accumulate."""
    vector: Size = 0
    """Elementwise and reduction FLOPs."""
    role: Role = "vector"
    partial: tuple[PartialRead, ...] = ()
    """Tensors that are read in part; all others are read whole."""
    reads: tuple[Value, ...] | None = None
    """Tensors whose data is read (default: all tensor arguments)."""
    aliases: tuple[Value, ...] | None = None
    """The tensor that each output is a view of (default: the first tensor argument if the role is ``alias``)."""
    skippable: Size = 0
    """Headline FLOPs that another algorithm for the same result can skip, apart from those that a mask hides."""
    attention: ScoreGrid | None = None
    """Attention scores of a fused call; ``None``: no score is counted as kept."""
    comm: tuple[str, Size, Size] | None = None
    """For a collective: its kind, the bytes of the whole tensor, and the bytes that this rank sends."""


class Uncountable(Exception):
    """Raised by a rule for a call that it cannot count; the call is reported as unknown, never as 0.

    Args:
        why: reason for the report, one clause.
        bound: upper bound of the FLOPs, if known.
    """

    def __init__(self, why: str, bound: Size | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.bound = bound


def invalid_part(cost: Any) -> str | None:
    """Return the invalid part of a third-party rule's result; ``None`` if the result is a valid cost."""
    if not isinstance(cost, OpCost):
        return "None" if cost is None else f"{cost!r} ({type(cost).__name__})"[:80]
    if cost.role not in ROLES:
        return f"role {cost.role!r}, not one of {', '.join(ROLES)}"
    for name in ("flops", "vector", "skippable"):
        size = getattr(cost, name)
        if isinstance(size, bool) or not isinstance(size, int | sympy.Expr) or (isinstance(size, int) and size < 0):
            return f"{name} = {size!r}, not a count"
    for name, kind in (("partial", PartialRead), ("reads", Value), ("aliases", Value)):
        values = getattr(cost, name)
        if values is not None and not (isinstance(values, tuple) and all(isinstance(v, kind) for v in values)):
            return f"{name}, not a tuple of {kind.__name__}"
    grid: Any = cost.attention
    return None if isinstance(grid, ScoreGrid | None) else f"attention, not a {ScoreGrid.__name__}"


def tensor(op: OpCall, name: str, position: int) -> Value:
    """Return a required tensor argument by name or, without names, by position among the tensors.

    Raises:
        Uncountable: the call does not have it.
    """
    found = optional(op, name, position)
    if found is None:
        raise Uncountable(f"no tensor argument {name!r}")
    return found


def optional(op: OpCall, name: str, position: int) -> Value | None:
    """Return an optional tensor argument by name or, without names, by position among the tensors."""
    if name in op.names:
        return op.names[name]
    return op.tensors[position] if position < len(op.tensors) else None


def has(op: OpCall, name: str, position: int) -> bool:
    """Return whether an optional tensor argument is passed.

    If the call has argument names, they decide, since ``position`` may then hold another tensor.
    """
    return name in op.names if op.names else position < len(op.tensors)


def result(op: OpCall) -> Value:
    """Return the first output, or the first argument of an in-place call without outputs."""
    if not op.outputs and not op.tensors:
        raise Uncountable("the call has no output")
    return (op.outputs or op.tensors)[0]


def attr(op: OpCall, *names: str, default: Any = None) -> Any:
    """Return the value of the first of these options that is set."""
    for name in names:
        value = op.attrs.get(name)
        if value is not None:
            return value
    return default


def computes(op: OpCall) -> bool:
    """Return whether the result of a call is floating point; integer and boolean arithmetic is not FLOPs."""
    return result(op).floating


def is_complex(op: OpCall) -> bool:
    """Return whether the result of a call is complex."""
    return result(op).dtype.startswith("complex")


def addition(op: OpCall) -> int:
    """Return the FLOPs of one addition in the result's arithmetic: 1, or 2 if it is complex."""
    return 2 if is_complex(op) else 1


def multiplication(op: OpCall, complex_factors: int = 2) -> int:
    """Return the FLOPs of one multiplication in the result's arithmetic.

    This is 1 for real results, 6 for two complex factors, and 2 for a complex and a real one.

    Args:
        complex_factors: how many of the two factors are complex, if the result is.
    """
    if not is_complex(op):
        return 1
    return 6 if complex_factors > 1 else 2


def scaling(op: OpCall, by: Any) -> int:
    """Return the FLOPs of multiplying an element by a number; 0 if the number is 1."""
    return 0 if by == 1 else multiplication(op, 1 + isinstance(by, complex))


def complex_operands(op: OpCall) -> int:
    """Count the complex tensors among the arguments."""
    return sum(t.dtype.startswith("complex") for t in op.tensors)


def reads_floats(op: OpCall) -> bool:
    """Return whether any argument is floating point, for operators with other results (comparisons, argmax)."""
    return any(t.floating for t in op.tensors)


def out_elements(op: OpCall) -> Size:
    """Return the number of elements of a call's first output."""
    return numel(result(op))
