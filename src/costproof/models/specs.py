"""Define records that targets pass to sources: parts to export, forwards to trace, built models, truncations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.opgraph.graph import CausalMask


GIVEN: Final = "the numbers that it was given"
"""Name, in notes, of the concrete values of a module and its inputs."""

BUFFER: Final = "buffer:"
"""Prefix, among arguments, of the names of tensors that the model holds: buffers, plain attributes, parameters."""

RUNS_ALL: Final = "the class runs all"
"""Start of the note on a class that runs all experts for every token although its configuration selects fewer."""


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """Dimension of an example input that an export keeps symbolic, with its symbol."""

    argument: tuple[str | int, ...]
    """Path of the tensor in the arguments: ``("pixel_values",)``, ``("keys", 0)``."""
    dim: int
    symbol: str
    step: int = 1
    """Number of which the dimension is declared a multiple, at least twice as large; 1 for no such declaration."""


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Part of a model to export or to trace in isolation: module, inputs on meta, and the stage of its costs.

    An export uses example sizes; an isolated trace uses the sizes of the workload.
    """

    id: str
    stage: str
    invocations: tuple[str, ...]
    """Invocations that this graph describes, each with its own symbol values."""
    module: nn.Module
    """Thin wrapper that calls the model's own module and adds no operators."""
    prefix: Mapping[str, str]
    """Paths from the root of the model, by path inside ``module``; the longest matching prefix decides. Modules outside
    of all prefixes belong to the wrapper, in which an operator that computes is an error."""
    args: Mapping[str, Any]
    """Keyword arguments of the module: tensors on meta, or nested lists of them."""
    sizes: Sequence[SymbolicSize] = ()
    returns_cache: bool = False
    """Whether the wrapper returns ``(result, [(keys, values) per layer])``."""
    own_calls: frozenset[str] = frozenset()
    """Paths, from the root, of the modules whose call counts this graph determines; empty for all its modules."""
    conventions: Mapping[str, str] = field(default_factory=dict)
    """Conventions in which the exported graph differs from the run: ``{"expert_kernel": "grouped_mm"}`` if grouped
    GEMMs replace a data-dependent loop over experts, which cannot be exported. The products are the same."""
    notes: tuple[str, ...] = ()
    """Notes on replacements without which the module could not be exported."""
    context: int | None = None
    """Number of tokens in the cache before a decode step that is traced in isolation."""
    inside: frozenset[str] = frozenset()
    """Names of arguments, and of results as ``return.0``, that are passed between two parts of the stage, and of
    parameters of ``module`` that another part of the stage reads in full."""
    repeated: bool = False
    """Whether the job is one decode step that represents N steps at contexts P, P + 1, …"""
    chunk: int = 0
    """Number of positions of a chunk, if the step attends within chunks; then masks have no sum in closed form."""
    elsewhere: bool = False
    """Whether the export may fall back to concrete values if a branch depends on data; as in :class:`Run`."""
    real: Callable[[], ExportJob] | None = None
    """With ``elsewhere``: function that returns the job with the values of module and arguments; as in :class:`Run`."""
    numbers: bool = False
    """Whether module and arguments have concrete values, so that the export follows the branches that these select."""
    holds: tuple[str, ...] = ()
    """Expressions in the symbols of ``sizes`` that must all be >= 0 for the arguments to be a valid state of the model.
    Guards of the export are not included."""
    masks: Mapping[str, CausalMask] = field(default_factory=dict)
    """Contents of the attention masks without values, by argument name."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """Values that the user gave for meta tensors in ``args``, by argument name, and those of buffers, plain attributes
    and frozen parameters that hide scores, by name after :data:`BUFFER`; only masks and lengths are read."""
    attributes_bytes: int = 0
    """Bytes of tensors that are plain attributes of the model's modules, if at least 1 MB."""
    packed: bool = False
    """Whether all packed jobs together are one call, which reads each weight once."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Stages of modules that have a separate one, by path from the root; all other modules belong to ``stage``."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the stages to which the job contributes."""
        return tuple(dict.fromkeys((*self.parts.values(), self.stage)))

    def place(self, path: str, call: int) -> tuple[str, str]:
        """Return the stage of a module call, and the first invocation."""
        inside = (stage for part, stage in self.parts.items() if path == part or path.startswith(f"{part}."))
        return next(inside, self.stage), self.invocations[0]


@dataclass(frozen=True, slots=True)
class Mark:
    """Event that a callgraph records when a module is entered, with fields read from the module's inputs."""

    name: str
    """Name of the event: ``vision_inputs``, ``llm_stack``, …"""
    module: str
    """Path of the module; empty for the root."""
    read: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Mapping[str, int | str | tuple[int, ...]]]
    """Function from (module, args, kwargs) to the fields of the event; empty fields for a call without an event."""


@dataclass(frozen=True, slots=True)
class Run:
    """One forward of the whole model to trace."""

    id: str
    """Name of the run: ``page`` (the prefill with the vision towers) or ``step@P``."""
    model: nn.Module
    kwargs: Mapping[str, Any]
    locate: Callable[[str, int], tuple[str, str]]
    """Function from (module path, call of its outermost repeated ancestor, from 1) to (stage, invocation)."""
    context: int | None = None
    """Number of tokens in the cache before the run, for decode steps."""
    cache_before: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    """Keys and values of each layer in the cache that is passed to the run."""
    attention_paths: Sequence[str] = field(default_factory=tuple)
    """Path of the module that owns the cache of each layer."""
    masks: Mapping[str, CausalMask] = field(default_factory=dict)
    """Contents of attention masks without values, by path in the arguments: ``attention_mask.full_attention``."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """As :attr:`ExportJob.known`: values of the user's tensors, and integer buffers."""
    expected: torch.Tensor | None = None
    """In a real run, the logits of the same forward without a tracer, which the traced one must equal bit by bit."""
    expert_tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """In a real run, the number of rows that each expert receives, by path of the module of routed experts."""
    marks: Sequence[Mark] = ()
    """Events to record in the callgraph in addition to enter and exit."""
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    """Function that returns the context in which the model runs, with patches of its code."""
    dispatched: bool = False
    """Whether operators are recorded at the dispatcher, because TorchLens cannot see those of distributed tensors."""
    groups: Sequence[str] = ()
    """Paths of containers, such as experts, whose modules run depending on data; costs are counted on the container."""
    positions: int = 0
    """Number of positions that the decoder processes; required with ``groups``."""
    packed: bool = False
    """As :attr:`ExportJob.packed`: whether all packed runs together are one call."""
    elsewhere: bool = False
    """Whether a run on meta may fall back to the CPU if the model needs concrete values."""
    real: Callable[[], Run] | None = None
    """With ``elsewhere``: function that returns the run with the tensors' values, or ones for tensors without values.
    """

    def inputs(self) -> dict[str, Any]:
        """Return a copy of the arguments, since a forward modifies its cache."""
        return copy.deepcopy(dict(self.kwargs))


@dataclass(frozen=True, slots=True)
class Built:
    """A model that is ready to run."""

    model: nn.Module
    notes: tuple[str, ...] = ()
    """Notes on weights that were loaded, converted or omitted."""
    attributes_bytes: int = 0
    """As :attr:`ExportJob.attributes_bytes`: bytes of tensors that are plain attributes of modules."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Model with some layer stacks truncated to a few layers, each of which represents several of the whole model."""

    parameters: int
    """Number of parameter elements of the whole model, each tensor counted once."""
    times: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Number of layers that each remaining layer represents, by path of a truncated stack."""

    def of(self, path: str) -> int:
        """Return how many modules of the whole model a module represents; 1 outside of truncated stacks."""
        return prod(_times(path, stack, times) for stack, times in self.times)


def _times(path: str, stack: str, times: Sequence[int]) -> int:
    if not path.startswith(f"{stack}."):
        return 1
    return times[int(path.removeprefix(f"{stack}.").partition(".")[0])]


EACH_KIND: Final = "one of each kind of layer"


def layers_cut(stack: str, layers: int, least: int, most: int, why: str = EACH_KIND) -> tuple[int, str]:
    """Return how many layers of a stack remain, and a phrase such as ``2 of 32``, empty if all remain.

    Args:
        stack: ``decoder`` or ``encoder``, for messages.
        layers: layers that were asked for; it keeps ``least`` at least.
        why: why it needs ``least`` layers.

    Raises:
        BadInput: the stack cannot be cut so.
    """
    if not 1 <= layers <= most or layers < least == most:
        what, expected = f"the {stack} cannot be cut to this number of layers", f"{least} to {most}: {why}"
        raise BadInput(what, where="--layers", expected=expected, got=layers)
    kept = max(layers, least)
    more = f" ({layers} asked: {why})" if kept > layers else ""
    return kept, f"{kept} of {most}{more}" if kept < most else ""
