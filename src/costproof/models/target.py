"""What a target must offer so that every source can count it.

A target knows its configuration, its stages, where their modules sit, how their inputs are made
and which formulas describe them. Sources ask; a target never counts anything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.conventions import Conventions
from costproof.ledger.node import Ledger
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Invocation, TargetInfo, Workload

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """A dimension of an example input that the export keeps symbolic, under a name of ours."""

    argument: tuple[str | int, ...]
    """Path into the arguments: ``("pixel_values",)``, ``("keys", 0)``."""
    dim: int
    symbol: str
    step: int = 1
    """Above 1: the export is told that the dimension is a multiple of this, at least twice it."""


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One ``torch.export`` to make: a module, example inputs on meta, and what of it counts where."""

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
    notes: tuple[str, ...] = ()
    """What was arranged so that the module can be exported here."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event of its own in the callgraph: what a module got, told when it is first entered in a run."""

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
    """What must hold while the model runs, and no longer: patches of the code that it is made of."""
    groups: Sequence[str] = ()
    """Containers of modules of which the data decides which run (experts): counted together, on the container."""
    positions: int = 0
    """Positions that pass the decoder; needed with ``groups``."""


@dataclass(frozen=True, slots=True)
class Built:
    """A model that is ready to run."""

    model: nn.Module
    notes: tuple[str, ...] = ()
    """What was loaded, converted, left out."""


@runtime_checkable
class PartlyExported(Protocol):
    """A target of which the static source covers a part."""

    @property
    def not_exported(self) -> Mapping[str, str]:
        """Stages that cannot be exported, with the reason."""
        ...


@dataclass(frozen=True, slots=True)
class StageRun:
    """One invocation of a stage on its own, to trace without the rest of the model."""

    id: str
    stage: str
    invocation: str
    module: nn.Module
    """A thin wrapper as in :class:`ExportJob`."""
    prefix: Mapping[str, str]
    """Module paths inside ``module`` -> paths from the root of the model, as in :class:`ExportJob`."""
    kwargs: Mapping[str, Any]
    """Keyword arguments of the sizes that the workload has: tensors on meta, or nested lists of them."""
    returns_cache: bool = False
    """Whether the wrapper returns ``(result, [(keys, values) per layer])``."""
    own_calls: frozenset[str] = frozenset()
    """Paths from the root whose calls this run vouches for; empty means: all that it shows."""
    context: int | None = None
    """Tokens in the cache before the run, for decode steps."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing about a run that can be chosen: an option of the command line, an argument in Python."""

    name: str
    """As an argument: ``base_size``; as an option ``--base-size``."""
    what: str
    """In one line, for ``--help``."""
    kind: Literal["integer", "text", "file", "choice"] = "integer"
    choices: tuple[str, ...] = ()
    metavar: str = "N"


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    """A preset, as the list of a target's workloads shows it."""

    name: str
    what: str
    tokens: Mapping[str, int]
    """What the prompt is made of: ``vision``, ``text``."""
    default: bool = False


class Target(Protocol):
    """A model that can be counted."""

    @property
    def name(self) -> str:
        """The name under which the target is registered."""
        ...

    def info(self) -> TargetInfo:
        """The target as data: configuration symbols with values, stages, waived keys."""
        ...

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """A workload of this target: a preset (the target's default one if ``None``) with changes.

        Settings that are ``None`` leave the preset's value. Raises
        :class:`~costproof.ledger.errors.Problems` with everything that is wrong with them.
        """
        ...

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        ...

    def conventions(self, workload: Workload) -> Conventions:
        """The conventions of all numbers made for this workload."""
        ...

    def check(self, workload: Workload) -> None:
        """Raise :class:`~costproof.ledger.errors.Problems` if the model cannot run this workload."""
        ...

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """The calls of the stages in one run, in order, with the values of their symbols."""
        ...

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        ...

    def checkpoint(self) -> Ledger | None:
        """Parameters of the published checkpoint, if this configuration is the published one."""
        ...

    @property
    def options(self) -> RunOptions:
        """How the dynamic source shall run the model."""
        ...

    def with_options(self, options: RunOptions) -> Target:
        """The same target, run in another way; with ``layers``, cut to them for all sources.

        Raises :class:`~costproof.ledger.errors.BadInput` if it cannot be run so.
        """
        ...

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device, in the workload's dtype, ready to run without further care."""
        ...

    def build_run(self, workload: Workload, progress: Callable[[str, int, int], None]) -> Built:
        """The model that the dynamic source runs: on meta, or with numbers on a device, as the options say."""
        ...

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """What the static source has to export."""
        ...

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """What the dynamic source has to trace."""
        ...

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[StageRun, ...]:
        """What the isolated source has to trace: every invocation of every stage, and of decode some steps."""
        ...
