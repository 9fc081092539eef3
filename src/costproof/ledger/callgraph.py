"""Describe the module calls of a traced run, and the operators of an exported stage in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from costproof.ledger.errors import BadInput
from costproof.ledger.plural import plural

JsonScalar = int | float | str | bool | None
"""A JSON scalar."""

ConstructorValue = int | float | str | bool | tuple[int, ...] | None
"""Recorded value of a constructor parameter: a scalar, or a few integers such as a kernel size."""


@dataclass(frozen=True, slots=True)
class TensorAt:
    """A tensor in the arguments or the result of a recorded module call."""

    shape: tuple[int, ...]
    dtype: str
    """Name of the dtype without the ``torch.`` prefix."""
    place: str = ""
    """Path of the tensor: ``args[0]``, ``kwargs.past_key_values.layers[0].keys``, ``output.logits``."""
    call: int = 1
    """Number of the module's call, from 1 on over all runs."""
    kind: Literal["tensor", "cache"] = "tensor"
    """``cache`` for contents of a key/value cache, which are not activations."""


@dataclass(frozen=True, slots=True)
class PlainAt:
    """A non-tensor value in the arguments or the result of a recorded module call."""

    kind: str
    """Name of the value's type, or ``list[N]``, ``same tensor`` or ``left out``.

    ``list[N]`` for a long list of scalars; ``same tensor`` for a repeated tensor, with its first place in ``value``;
    ``left out`` if a call has too many values to record.
    """
    value: JsonScalar = None
    """The value itself if it is small enough to record."""
    place: str = ""
    call: int = 1


ValueAt = TensorAt | PlainAt


@dataclass(frozen=True, slots=True)
class Event:
    """Entry or exit of a module, or a mark such as ``decode_step``."""

    index: int
    event: str
    """Kind of the event: ``enter``, ``exit`` or ``mark``."""
    name: str
    """Path of the module, or name of the mark: ``decode_step``, the id of a run, or one that the target defines."""
    data: dict[str, int | str | tuple[int, ...]] = field(default_factory=dict)
    """``call`` number of an enter or exit, ``raised`` for an exit by an exception, or the data of a mark."""


MOST_LEVELS: Final = 400
"""Maximum nesting depth of modules, by path and by caller."""


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls between modules by module path; the root is ``(root)``, and an edge is ``caller->callee``.

    A module with several paths has the first one, as in ``named_modules``.
    """

    call_counts: dict[str, int]
    edges: dict[str, int]
    op_call_counts: dict[str, dict[str, int]]
    """Number of calls of each operator, by the innermost module that ran it and by operator."""
    module_children: dict[str, tuple[str, ...]]
    module_types: dict[str, str]
    constructor_params: dict[str, dict[str, ConstructorValue]] = field(default_factory=dict)
    input_metadata: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    """Arguments of each module in its first call or in all calls, by module."""
    output_metadata: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    """Results of each module in its first call or in all calls, by module."""
    events: tuple[Event, ...] = ()
    data_edges: dict[str, int] = field(default_factory=dict)
    """Number of pairs of calls of which ``b`` reads the result of ``a``, by ``a->b``.

    Both calls are made by one call of a common caller. The result is read directly or through operators of the caller
    itself (a residual addition). ``a->a`` is a module fed by its own earlier call.
    """
    module_aliases: dict[str, str] = field(default_factory=dict)
    """Path of a shared module in the callgraph, by its further paths."""
    tied_parameters: dict[str, str] = field(default_factory=dict)
    """Name under which a shared parameter is counted, by its further names."""

    def __repr__(self) -> str:
        """Return a summary in one line, since a notebook must not print thousands of modules."""
        return f"CallGraph({plural(len(self.call_counts), 'module')}, {plural(sum(self.call_counts.values()), 'call')})"


def check_levels(graph: CallGraph, where: str) -> None:
    """Reject a callgraph that is nested deeper than any model.

    Raises:
        BadInput: modules or calls are nested more than :data:`MOST_LEVELS` deep.
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
    """An operator in the listing of an exported stage."""

    label: str
    """Name of the operator's graph node."""
    operator: str
    module: str
    """Path of the module that runs the operator; empty for the root."""
    reads: tuple[str, ...]
    """Names of nodes, parameters and inputs in the order of the operator's arguments: ``%relu``, ``0.weight``."""
    returns: tuple[str, ...]
    """Shapes and dtypes of the results, such as ``[1, 64, 1280] bfloat16``."""
    flops: int | None
    """Headline FLOPs; ``None`` if unknown."""
    vector_flops: int | None
    why: str = ""
    """Reason for an unknown cost; empty if the costs are known."""
    makes: tuple[str, ...] = ()
    """Names of the results, as later operators read them."""
    works: bool = True
    """Whether the operator computes, reads or writes, unlike views, casts and the creation of empty tensors."""
    bytes: int = 0
    """Bytes that the operator reads and writes as a separate kernel."""


@dataclass(frozen=True, slots=True)
class ReuseBytes:
    """Bytes that a stage reads and writes, under three assumptions on fusion."""

    floor: int
    """Compulsory traffic: each tensor is moved once, however operators are fused."""
    fused: int
    """Traffic if each module is a single kernel, as the ledgers assume."""
    unfused: int
    """Traffic if each operator is a single kernel."""


@dataclass(frozen=True, slots=True)
class OperatorListing:
    """The operators of an exported stage at the sizes of one call; for decode, of the first step."""

    stage: str
    invocation: str
    part: str
    """Name of the exported part, if the stage is exported in parts."""
    lines: tuple[OperatorLine, ...]
    reuse: ReuseBytes | None = None
    """Bytes of the whole export; ``None`` if only some of its operators are listed."""
