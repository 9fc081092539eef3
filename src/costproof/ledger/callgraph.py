"""The callgraph of one dynamic run: what ran, how often, inside what, on which shapes."""

from __future__ import annotations

from dataclasses import dataclass, field

from costproof.ledger.workload import TensorSpec


@dataclass(frozen=True, slots=True)
class Event:
    """Enter or exit of a module, or a mark such as ``decode_step``."""

    index: int
    event: str
    name: str
    data: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls between modules. Keys are module paths; the root is ``(root)``; an edge is ``caller->callee``."""

    call_counts: dict[str, int]
    edges: dict[str, int]
    op_call_counts: dict[str, dict[str, int]]
    """Per innermost module: operator -> calls."""
    module_children: dict[str, tuple[str, ...]]
    module_types: dict[str, str]
    constructor_params: dict[str, dict[str, int | float | str | bool | None]] = field(default_factory=dict)
    input_metadata: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    """Tensors of the first call."""
    output_metadata: dict[str, tuple[TensorSpec, ...]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
