"""Specifications that a target gives to the sources: parts to export, forwards to trace, built models, truncations."""

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


GIVEN: Final = "the numbers that it was given"
"""What notes call the numbers of a module and inputs that have some."""

RUNS_ALL: Final = "the class runs all"
"""Start of the note on a class that runs all experts for every token, where its configuration names fewer."""


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """Dimension of an example input that the export keeps symbolic, under a name chosen here."""

    argument: tuple[str | int, ...]
    """Path into the arguments: ``("pixel_values",)``, ``("keys", 0)``."""
    dim: int
    symbol: str
    step: int = 1
    """Above 1: the export is told that the dimension is a multiple of this, at least twice it."""


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Part of a model to export, or to trace by itself: a module, its inputs on meta, and where its costs belong.

    An export is made at example sizes; what is traced alone has the sizes that the workload has.
    """

    id: str
    stage: str
    invocations: tuple[str, ...]
    """The invocations that this graph describes; it is evaluated at the symbols of each."""
    module: nn.Module
    """A thin wrapper that calls the model's own module; it adds no operators of its own."""
    prefix: Mapping[str, str]
    """Module paths inside ``module`` -> paths from the root of the model; the longest prefix wins.
    Modules under no prefix are scaffolding: an operator there that computes is an error."""
    args: Mapping[str, Any]
    """Keyword arguments: tensors on meta, or nested lists of them."""
    sizes: Sequence[SymbolicSize] = ()
    returns_cache: bool = False
    """Whether the wrapper returns ``(result, [(keys, values) per layer])``."""
    own_calls: frozenset[str] = frozenset()
    """Paths from the root whose calls this graph vouches for; empty means: all that it shows."""
    conventions: Mapping[str, str] = field(default_factory=dict)
    """Where the exported graph departs from what runs: ``{"expert_kernel": "grouped_mm"}`` for one that stands for
    a loop, which no export can follow. It does the same products by other operators."""
    notes: tuple[str, ...] = ()
    """Notes on changes made so that the module can be exported here."""
    context: int | None = None
    """Tokens in the cache before a decode step that is traced alone."""
    inside: frozenset[str] = frozenset()
    """Names of arguments, and of results as ``return.0``, that pass between two parts of the stage; and of parameters
    of ``module`` that another part of it reads whole."""
    repeated: bool = False
    """Whether it is one decode step, that stands for N of them at contexts from P."""
    elsewhere: bool = False
    """Whether it may be exported with numbers, where numbers decide what it does; as of :class:`Run`."""
    real: Callable[[], ExportJob] | None = None
    """With ``elsewhere``: makes the job with the numbers that module and arguments have; as of :class:`Run`."""
    numbers: bool = False
    """Whether module and arguments have numbers, and the export follows the way that these decide."""
    holds: tuple[str, ...] = ()
    """Expressions of the symbols of ``sizes``, none of which is negative where the target makes this job: elsewhere
    its arguments are in no state that the model has. Conditions of the export are not among them."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Paths from the root of the model of modules with a stage of their own -> that stage; all else is in ``stage``."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the stages to which the job contributes."""
        return tuple(dict.fromkeys((*self.parts.values(), self.stage)))

    def place(self, path: str, call: int) -> tuple[str, str]:
        """Return the stage and the first invocation of a module call."""
        inside = (stage for part, stage in self.parts.items() if path == part or path.startswith(f"{part}."))
        return next(inside, self.stage), self.invocations[0]


@dataclass(frozen=True, slots=True)
class Mark:
    """Extra event in the call graph: the inputs of a module, recorded when it is first entered in a run."""

    name: str
    """``vision_inputs``, ``llm_stack``, …"""
    module: str
    """Path of the module; empty for the root."""
    read: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Mapping[str, int | str | tuple[int, ...]]]
    """(module, args, kwargs) -> what the event tells; nothing if this call has nothing to tell."""


@dataclass(frozen=True, slots=True)
class Run:
    """One forward of the whole model to trace."""

    id: str
    """``page`` (the prefill with the vision towers) or ``step@P``."""
    model: nn.Module
    kwargs: Mapping[str, Any]
    locate: Callable[[str, int], tuple[str, str]]
    """(module path, call of its outermost repeated ancestor counted from 1) -> (stage, invocation)."""
    context: int | None = None
    """Tokens in the cache before the run, for decode steps."""
    cache_before: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    """Keys and values per layer that the run gets."""
    attention_paths: Sequence[str] = field(default_factory=tuple)
    """Module path that owns the cache of layer i."""
    expected: torch.Tensor | None = None
    """Logits of the same forward without a tracer, in a real run: a traced one must return the same bits."""
    expert_tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Module of routed experts -> rows that each expert receives, in a real run."""
    marks: Sequence[Mark] = ()
    """Events that the target wants in the callgraph beside enter and exit."""
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the model runs, such as patches of its code, which are undone afterwards."""
    groups: Sequence[str] = ()
    """Containers of modules of which the data decides which run (experts): counted together, on the container."""
    positions: int = 0
    """Positions that pass the decoder; needed with ``groups``."""
    elsewhere: bool = False
    """Whether a run on meta may be taken to the CPU where the model looks at numbers."""
    real: Callable[[], Run] | None = None
    """With ``elsewhere``: makes the run with the numbers that module and inputs have. What has none is ones."""

    def inputs(self) -> dict[str, Any]:
        """Return a copy of the arguments, since a forward modifies the cache that it gets."""
        return copy.deepcopy(dict(self.kwargs))


@dataclass(frozen=True, slots=True)
class Built:
    """A model that is ready to run."""

    model: nn.Module
    notes: tuple[str, ...] = ()
    """Notes on weights that were loaded, converted or omitted."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """For each module of a truncated model, the number of modules of the whole model that it represents."""

    parameters: int
    """Elements of the whole model's parameters, each tensor once; none of them needs memory to be counted."""
    times: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Path of a cut stack of layers -> for how many of them each kept one stands."""

    def of(self, path: str) -> int:
        """Return how many modules of the whole model the one at a path represents."""
        return prod(_times(path, stack, times) for stack, times in self.times)


def _times(path: str, stack: str, times: Sequence[int]) -> int:
    if not path.startswith(f"{stack}."):
        return 1
    return times[int(path.removeprefix(f"{stack}.").partition(".")[0])]


EACH_KIND: Final = "one of each kind of layer"


def layers_cut(stack: str, layers: int, least: int, most: int, why: str = EACH_KIND) -> tuple[int, str]:
    """Return how many layers a stack keeps, and a phrase such as ``2 of 32``; the phrase is empty if it keeps all.

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
