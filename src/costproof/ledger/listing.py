"""The operators of an exported stage in order of execution, each with its cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One operator."""

    label: str
    """Name of its node in the graph."""
    operator: str
    module: str
    """Path of the module that runs it; empty for the root."""
    reads: tuple[str, ...]
    """Nodes, parameters and inputs, in the order of its arguments: ``%relu``, ``0.weight``."""
    returns: tuple[str, ...]
    """``[1, 64, 1280] bfloat16``."""
    flops: int | None
    """Matmul-like FLOPs; ``None`` is unknown."""
    vector_flops: int | None
    why: str = ""
    """Of what is unknown."""
    makes: tuple[str, ...] = ()
    """What it returns, by the names that others read."""
    works: bool = True
    """Whether it computes, reads or writes; a view, a cast or an empty tensor does not."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One export at the sizes of one call: of decode steps the first."""

    stage: str
    invocation: str
    part: str
    """Of a stage that is exported in parts."""
    lines: tuple[Line, ...]
