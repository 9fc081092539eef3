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
    bytes: int = 0
    """What it reads and writes where it runs on its own."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Bytes that a stage moves: weights, activations and the cache, read and written."""

    floor: int
    """Each once, whatever is fused."""
    fused: int
    """Module by module, each as one region: what the ledgers count."""
    unfused: int
    """Operator by operator."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One export at the sizes of one call: of decode steps the first."""

    stage: str
    invocation: str
    part: str
    """Of a stage that is exported in parts."""
    lines: tuple[Line, ...]
    reuse: Reuse | None = None
    """Of the whole export; ``None`` where only some of its operators are listed."""
