"""Represent the calls of a traced run, and the operators of an exported stage in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from costproof.ledger.errors import BadInput
from costproof.ledger.plural import plural

JsonScalar = int | float | str | bool | None
"""A value that JSON has a word for."""

ConstructorValue = int | float | str | bool | tuple[int, ...] | None
"""What a constructor parameter may be: plain, or a few integers such as a kernel's sides."""


@dataclass(frozen=True, slots=True)
class TensorAt:
    """One tensor that a module took or gave, with its place in the arguments or the result."""

    shape: tuple[int, ...]
    dtype: str
    """Without the ``torch.`` prefix."""
    place: str = ""
    """``args[0]``, ``kwargs.past_key_values.layers[0].keys``, ``output.logits``."""
    call: int = 1
    """Which call of the module, counted over all runs from 1."""
    kind: Literal["tensor", "cache"] = "tensor"
    """``cache`` for what a key/value cache holds: it is memory, but no activation."""


@dataclass(frozen=True, slots=True)
class PlainAt:
    """What a module took or gave that is not a tensor."""

    kind: str
    """Name of the type; ``list[N]`` for a long list of plain values; ``same tensor`` for one that already
    stands at the place in ``value``; ``left out`` where a call has more values than are kept."""
    value: JsonScalar = None
    """The value itself, where it is small; else nothing."""
    place: str = ""
    call: int = 1


ValueAt = TensorAt | PlainAt


@dataclass(frozen=True, slots=True)
class Event:
    """Enter or exit of a module, or a mark such as ``decode_step``."""

    index: int
    event: str
    """``enter``, ``exit`` or ``mark``."""
    name: str
    """Path of the module, or the mark: ``decode_step``, the id of a run, or what a family brings."""
    data: dict[str, int | str | tuple[int, ...]] = field(default_factory=dict)
    """``call`` of enter and exit, ``raised`` of an exit by an exception; what a mark tells otherwise."""


MOST_LEVELS: Final = 400
"""Of modules in each other, by their paths and by who calls whom."""


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls between modules. Keys are module paths; the root is ``(root)``; an edge is ``caller->callee``.

    A module that hangs in the tree at several paths goes by the first one, as in ``named_modules``.
    """

    call_counts: dict[str, int]
    edges: dict[str, int]
    op_call_counts: dict[str, dict[str, int]]
    """Per innermost module: operator -> calls."""
    module_children: dict[str, tuple[str, ...]]
    module_types: dict[str, str]
    constructor_params: dict[str, dict[str, ConstructorValue]] = field(default_factory=dict)
    input_metadata: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    """What each module took: in its first call, or in all of them."""
    output_metadata: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    """What each module gave, likewise."""
    events: tuple[Event, ...] = ()
    data_edges: dict[str, int] = field(default_factory=dict)
    """``a->b``: how many pairs of a call of ``a`` and a call of ``b``, both made by one call of the same
    caller, are such that the second reads what the first made: directly, or through operators that
    the caller runs itself (a residual addition). ``a->a`` is a module that is fed by its own earlier call."""
    module_aliases: dict[str, str] = field(default_factory=dict)
    """Other paths of shared modules -> the path that the callgraph uses."""
    tied_parameters: dict[str, str] = field(default_factory=dict)
    """Other names of shared parameters -> the name that they are counted under."""

    def __repr__(self) -> str:
        """One line: a notebook must not print thousands of modules."""
        return f"CallGraph({plural(len(self.call_counts), 'module')}, {plural(sum(self.call_counts.values()), 'call')})"


def check_levels(graph: CallGraph, where: str) -> None:
    """Refuse a callgraph that is nested deeper than any model.

    Raises:
        BadInput: its modules lie, or its calls go, more than :data:`MOST_LEVELS` deep.
    """
    paths = (*graph.call_counts, *graph.module_types, *graph.module_children)
    deepest = max((path.count(".") + 1 for path in paths), default=0)
    called: dict[str, list[str]] = {}
    for edge in graph.edges:
        caller, _, callee = edge.partition("->")
        called.setdefault(caller, []).append(callee)
    callees = {b for some in called.values() for b in some}
    level, seen, levels = [a for a in called if a not in callees], set[str](), 0
    while level:
        seen |= set(level)
        level = list(dict.fromkeys(b for a in level for b in called.get(a, ()) if b not in seen))
        levels += 1
    if max(deepest, levels) > MOST_LEVELS:
        limit, got = f"at most {MOST_LEVELS} levels", f"{max(deepest, levels):,}"
        raise BadInput("the callgraph is nested too deep", where=where, expected=limit, got=got)


@dataclass(frozen=True, slots=True)
class OperatorLine:
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
class ReuseBytes:
    """Bytes that a stage moves: weights, activations and the cache, read and written."""

    floor: int
    """Each once, whatever is fused."""
    fused: int
    """Module by module, each as one region: what the ledgers count."""
    unfused: int
    """Operator by operator."""


@dataclass(frozen=True, slots=True)
class OperatorListing:
    """One export at the sizes of one call: of decode steps the first."""

    stage: str
    invocation: str
    part: str
    """Of a stage that is exported in parts."""
    lines: tuple[OperatorLine, ...]
    reuse: ReuseBytes | None = None
    """Of the whole export; ``None`` where only some of its operators are listed."""
