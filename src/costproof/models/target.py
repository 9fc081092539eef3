"""Protocols of a target, one for each capability, and which sources a target supports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunDevice, RunOptions
from costproof.ledger.workload import Invocation, ModuleKinds, TargetInfo, Workload
from costproof.models.specs import Built, ExportJob, Run, Stretch

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing about a run that can be chosen: an option of the command line, an argument in Python."""

    name: str
    """As an argument: ``base_size``; as an option ``--base-size``."""
    what: str
    """In one line, for ``--help``."""
    kind: Literal["integer", "text", "file", "choice", "list"] = "integer"
    """``list``: may be given several times; a workload has the values with commas between them."""
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

    def settings(self) -> tuple[Setting, ...]:
        """What can be chosen about a workload, by names that :meth:`workload` takes."""
        ...

    def presets(self) -> tuple[NamedWorkload, ...]:
        """The workloads that have names."""
        ...

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """A workload of this target: a preset (the target's default one if ``None``) with changes.

        Settings that are ``None`` leave the preset's value. Raises
        :class:`~costproof.ledger.errors.Problems` with everything that is wrong with them.
        """
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


@runtime_checkable
class WithFormulas(Target, Protocol):
    """A target that closed formulas describe: the analytic source."""

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        ...

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        ...


@runtime_checkable
class Uncut(WithFormulas, Protocol):
    """A target that closed formulas describe, and that can be had with all its layers again."""

    def uncut(self) -> WithFormulas:
        """Return the model with all its layers."""
        ...


@runtime_checkable
class WithKeys(WithFormulas, Protocol):
    """A target that closed formulas describe, whatever its configuration."""

    @property
    def config(self) -> Any:
        """The configuration: a frozen dataclass of everything that decides a cost."""
        ...

    def with_keys(self, changes: Mapping[str, Any]) -> WithKeys:
        """The same model with other values under keys of its configuration.

        Raises:
            Problems: as :func:`~costproof.models.config.with_keys`.
        """
        ...


@runtime_checkable
class WithCheckpoint(Target, Protocol):
    """A target whose published checkpoint is known."""

    def checkpoint(self) -> Ledger | None:
        """Parameters of the published checkpoint, if this configuration is the published one."""
        ...


@runtime_checkable
class WithModules(Target, Protocol):
    """A target that nothing describes but its own modules: two of them are compared by part."""

    def module_kinds(self) -> ModuleKinds:
        """The modules of the model, by place."""
        ...


@runtime_checkable
class WithValues(Target, Protocol):
    """A target that is called with tensors of the user's own, whose values a run may follow."""

    def with_values(self, workload: Workload) -> Workload:
        """Return the workload with these values in its arguments."""
        ...


@runtime_checkable
class Exportable(Target, Protocol):
    """A target whose parts can be exported: the static source."""

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device, in the workload's dtype, ready to run without further care."""
        ...

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """What the static source has to export."""
        ...

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """The stages that a module works in, in the order of the run."""
        ...


@runtime_checkable
class PartlyExported(Exportable, Protocol):
    """A target of which the static source covers a part."""

    @property
    def not_exported(self) -> Mapping[str, str]:
        """Stages that cannot be exported, with the reason."""
        ...


@runtime_checkable
class Derivable(Exportable, Protocol):
    """A target of which a stage can be exported with more symbols than it usually is."""

    def derivable(self, stage: str) -> tuple[Exportable, Workload, Mapping[str, int]] | None:
        """What to export for the closed form of a stage, at which run, and the numbers that symbols are multiples of.

        ``None`` where the usual exports have all symbols that there are.
        """
        ...


@runtime_checkable
class Staged(Exportable, Protocol):
    """A target whose stages can be run alone: the isolated source."""

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """What the isolated source has to trace: every invocation of every stage, and of decode some steps."""
        ...


@runtime_checkable
class Runnable(Target, Protocol):
    """A target that can be run as a whole: the dynamic source."""

    @property
    def options(self) -> RunOptions:
        """How the dynamic source shall run the model."""
        ...

    def with_options(self, options: RunOptions) -> Runnable:
        """The same target, run in another way; with ``layers``, cut to them for all sources.

        Raises :class:`~costproof.ledger.errors.BadInput` if it cannot be run so.
        """
        ...

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """The model that the dynamic source runs: on meta, or with numbers on a device, as the options say.

        Raises:
            Problems: the checkpoint does not fit the model.
            BadInput: there is no checkpoint, or the installed packages cannot run the model's code.
            Incomplete: the device is not there, or no kernel of FlashAttention.
        """
        ...

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """What the dynamic source has to trace."""
        ...


@runtime_checkable
class Stretched(Runnable, Protocol):
    """A target that can be cut to its first layers, and then says what these stand for."""

    def stretched(self) -> tuple[Stretch, Runnable, Stretch] | None:
        """What the cut model says about the whole one; the same model with more layers, and what that says.

        The second one has at least one more layer of each kind that is left out. ``None``: the model is not cut.
        """
        ...

    def uncut(self) -> Runnable:
        """The model with all its layers, as shapes without numbers."""
        ...


@runtime_checkable
class MayBeHere(Runnable, Protocol):
    """A target that may be an object of this process alone: its sources run here, one after another."""

    @property
    def here(self) -> bool:
        """Whether it is one."""
        ...


SERVES: Final[Mapping[str, tuple[type, str]]] = {
    "analytic": (WithFormulas, "the target has no formulas"),
    "static": (Exportable, "the target cannot be exported"),
    "dynamic": (Runnable, "the target cannot be run as a whole"),
    "isolated": (Staged, "the target's stages cannot be run alone"),
}
"""Source -> the protocol that it needs, and what to say of a target without it."""


def lacking(target: Target, sources: Iterable[str]) -> dict[str, str]:
    """Those of the sources that this target cannot serve, with the reason."""
    return {s: why for s in sources for needed, why in [SERVES[s]] if not isinstance(target, needed)}


def options_of(target: Target) -> RunOptions:
    """How the target shall be run; the default for one that cannot be."""
    return target.options if isinstance(target, Runnable) else RunOptions()


def run_with(target: Target, options: RunOptions) -> Target:
    """The target with options of a run.

    Raises:
        BadInput: it cannot be run, or not so.
    """
    if isinstance(target, Runnable):
        return target.with_options(options)
    if options != RunOptions():
        raise BadInput("this target cannot be run as a whole, so there is nothing to choose", where=target.name)
    return target


def require_device(device: RunDevice) -> None:
    """Check that torch can use a device; only for ``cuda`` torch is imported.

    Raises:
        Incomplete: it cannot.
    """
    if device != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise Incomplete(
            "this machine has no GPU that torch can use",
            where="--run cuda",
            got=f"torch {torch.__version__}",
            fix="--run cpu, or --run meta for shapes alone",
        )
