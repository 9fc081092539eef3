"""What an operator rule answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import sympy

from costproof.opgraph.graph import Size, Value

Role = Literal["matmul", "vector", "lookup", "move", "alias", "factory", "free"]
"""What a call does to memory and arithmetic.

``matmul`` and ``vector`` compute. ``lookup`` and ``move`` only read and write. ``alias`` returns its
argument in another shape, order or type and is not work: whoever reads the result reads the argument.
``factory`` makes a tensor without reading one. ``free`` touches no data at all (assertions, sizes).
"""


ROLES: Final = get_args(Role)


@dataclass(frozen=True, slots=True)
class PartialRead:
    """A call reads only some rows of one of its tensors (a table, a stack of expert matrices)."""

    value: Value
    elements: Size
    """Elements read by this call."""
    distinct: bool
    """Whether rows read twice are fetched once: then all reads together are at most the whole tensor."""
    rows: Size | None = None
    """For a stack of matrices: how many rows meet one of them each."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """Cost of one call. Sizes are integers or sympy expressions, as the shapes are."""

    flops: Size = 0
    """Headline FLOPs: 2 per multiply-accumulate."""
    vector: Size = 0
    """Elementwise and reduction FLOPs."""
    role: Role = "vector"
    partial: tuple[PartialRead, ...] = ()
    """Tensors of which only rows are read; all others are read whole."""
    reads: tuple[Value, ...] | None = None
    """The tensors whose data is read; ``None`` means all tensor arguments."""
    aliases: tuple[Value, ...] | None = None
    """What each output is a view of; ``None`` means the first tensor argument for ``alias``, and nothing else."""
    skippable: Size = 0
    """Of the headline FLOPs, those that another implementation of the same result leaves out; at least those that it
    may leave out, where data decides."""


class Uncountable(Exception):
    """A rule knows the operator but not this call of it: it is reported as unknown, never as 0.

    Args:
        why: one clause, for the report.
        bound: an upper bound of the FLOPs, where one is known.
    """

    def __init__(self, why: str, bound: Size | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.bound = bound


def wrong_in(cost: Any) -> str | None:
    """What is wrong with the answer of somebody's rule; ``None`` if it is a cost."""
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
    return None
