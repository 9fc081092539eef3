"""Define the protocols of targets, one per capability, and which protocol each source requires."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

from costproof.ledger.capture import SymbolDoc, TokenPadding
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import Conventions, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunDevice, RunOptions
from costproof.ledger.workload import Dtype, Invocation, ModuleKinds, TargetInfo, Workload
from costproof.models.specs import Built, ExportJob, Run, Truncation

if TYPE_CHECKING:
    from torch import nn

    from costproof.algebra.evaluation import SymbolValues
    from costproof.analytic.memory_tape import MemoryTape
    from costproof.estimate.routing import RoutedLayers
    from costproof.models.cache_dtype import BlockedCache
    from costproof.weights.stored import Stored


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of a workload: an option of the command line and a keyword argument in Python."""

    name: str
    """Name of the Python argument: ``base_size``; the option is ``--base-size``."""
    what: str
    """Description of the setting in one line, for ``--help``."""
    kind: Literal["integer", "text", "file", "choice", "list"] = "integer"
    """Type of the value; a ``list`` option may be repeated, and the workload stores its values joined by commas."""
    choices: tuple[str, ...] = ()
    metavar: str = "N"


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    """Preset in the list of a target's workloads."""

    name: str
    what: str
    tokens: Mapping[str, int]
    """Number of prompt tokens by kind, ``vision`` or ``text``."""
    default: bool = False


class Target(Protocol):
    """Protocol of every target, a model that can be counted."""

    @property
    def name(self) -> str:
        """Return the name under which the target is registered."""

    def info(self) -> TargetInfo:
        """Return the target as plain data: configuration symbols with values, stages, waived keys."""

    def settings(self) -> tuple[Setting, ...]:
        """Return the workload settings, by the names that :meth:`workload` takes."""

    def presets(self) -> tuple[NamedWorkload, ...]:
        """Return the target's presets: named workloads, one of which is the default."""

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return the workload of a preset (the default one if ``None``) with changed settings.

        Settings that are ``None`` leave the preset's value. Raises
        :class:`~costproof.ledger.errors.Problems` with everything that is wrong with them.
        """

    def conventions(self, workload: Workload) -> Conventions:
        """Return the counting conventions of this workload's numbers."""

    def check(self, workload: Workload) -> None:
        """Check that the model can run this workload.

        Raises :class:`~costproof.ledger.errors.Problems` if it cannot.
        """

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of the stages in one run, in order, with the values of their symbols."""


@runtime_checkable
class WithFormulas(Target, Protocol):
    """Protocol of targets with closed formulas, which the analytic source evaluates."""

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``)."""

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """Return the notation and the meaning of each symbol in the formulas."""


@runtime_checkable
class Uncut(WithFormulas, Protocol):
    """Protocol of targets with closed formulas whose truncation can be undone."""

    def uncut(self) -> WithFormulas:
        """Return the same target with all layers."""


DATA_COPIES: Final = "copies of data-parallel ranks"
"""Cause in sums over ranks: costs that each rank along ``dp`` and ``fsdp`` has again."""
SEQUENCE_COPIES: Final = "copies of ranks that share a sequence"
"""Cause in a :class:`Sharing` and in sums over ranks: costs that each rank along ``cp`` has again."""
OF_MEMORY: Final[tuple[Metric, ...]] = ("params_active", "stored_bytes", "stored_elements", "resident_bytes")
OF_WORK: Final[tuple[Metric, ...]] = (
    "calls", "vector_flops", "weight_read_bytes", "input_bytes", "output_bytes", "kv_read_bytes", "unfused_bytes",
    "floor_bytes",
)  # fmt: skip
"""Metrics whose duplicates are given term by term (:meth:`Sharing.excess`)."""


class Sharing(Protocol):
    """Protocol of the division of a model among the ranks of a mesh: split and duplicated parts."""

    @property
    def origin(self) -> str:
        """Return the source of the plan, as reports name it."""

    @property
    def routed(self) -> RoutedLayers | None:
        """Return the mixtures of experts that ranks divide; ``None`` if there are none."""

    @property
    def own_mixtures(self) -> range:
        """Return the indices of the rank's layers among those with routed experts."""

    @property
    def by_heads(self) -> bool:
        """Return whether each rank that shares a sequence caches some heads at all positions."""

    def axis_of(self, role: str, kind: str) -> str:
        """Return the name of the rank group in which a module runs a kind of collective (:meth:`Mesh.group`)."""

    def held_by(self, role: str, metric: Metric) -> tuple[int, str]:
        """Return the sum of a cost over ranks with one batch, relative to one device, and the name of copies."""

    def by_terms(self) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
        """Return the metrics of memory and of work whose duplicates :meth:`excess` gives."""

    def added_by_collectives(
        self, one: Ledger, stage: str, metric: Metric, item: int, stored: int
    ) -> Iterator[tuple[str, int]]:
        """Yield what collectives add to a cost of all ranks, and copies of a tied table, by cause."""

    def excess(
        self, role: str, metric: Metric, expr: str, one: SymbolValues, ranks: Sequence[SymbolValues]
    ) -> Iterator[tuple[str, int]]:
        """Yield what all ranks have more of a cost than one device, by cause.

        Args:
            role: of a module, as formulas name it.
            expr: formula of its cost on one device.
            one: values of the formula's symbols on one device.
            ranks: those on the first rank of each group with one batch.
        """

    def moved(
        self, role: str, metric: Metric, one: SymbolValues, every: Sequence[SymbolValues], modules: int
    ) -> Iterator[tuple[str, int]]:
        """Yield what the exchange with other ranks adds to a cost of all modules of a role in a call, by cause.

        Args:
            role: of a module, as formulas name it.
            one: values of the symbols on one device.
            every: those on all ranks of the first pipeline stage, in order.
            modules: number of modules of the role.
        """

    @property
    def counted_once(self) -> frozenset[str]:
        """Return the roles of modules that read some weights repeatedly, of which :meth:`at_floor` has each once."""

    def at_floor(
        self, nodes: Sequence[CostNode], one: SymbolValues, every: Sequence[SymbolValues]
    ) -> Iterator[tuple[str, int]]:
        """Yield what all ranks have more at the boundary of the decoder than one device, and of weights read, by cause.

        These are logits, hidden states, masks and features, and the rows of tables and the biases of experts, which a
        floor has once.

        Args:
            nodes: evaluated formulas of the call on one device.
            one: values of the symbols on one device.
            every: those on all ranks of the first pipeline stage, in order.
        """

    def copies_of_batches(self, role: str, metric: Metric) -> int:
        """Return how many groups of ranks divide the batch, each with a module's whole cost in this metric."""

    def copies_of_sequences(self, metric: Metric) -> int:
        """Return how many of the ranks that share sequences have a module's whole cost in this metric."""

    def along_sequence(self, stage: str, role: str, kind: str, metric: str, cost: int) -> tuple[int, str]:
        """Return the cost that ranks that share a sequence add to that of one device, and its name."""

    def dtypes(self, axis: str, kind: str, dtype: str, role: str = "") -> tuple[str, ...]:
        """Return the dtypes of the tensors in one kind of collective of a module, in a run in ``dtype``."""

    def added(self, role: str) -> tuple[int, str]:
        """Return the parameter elements that the ranks of one batch add to those of one device, and their name."""

    def padding_of(self, role: str, metric: Metric, cost: int) -> tuple[int, str]:
        """Return the cost that padding of the ranks' parts adds to that of one device, and its name."""


@runtime_checkable
class Sharded(WithFormulas, Protocol):
    """Protocol of targets with closed formulas for one rank of several devices."""

    def shares(self, workload: Workload) -> Sharing:
        """Return the division of the model among the ranks of a workload's mesh."""


@runtime_checkable
class WithWholePrompt(Protocol):
    """Protocol of targets whose prompts have more tokens than those of the text."""

    def whole_prompt(self, workload: Workload) -> Workload:
        """Return the workload with the placeholder tokens of images among its text tokens."""


def sharded(target: object) -> Sharded | None:
    """Return the target if it has formulas for one rank of several devices, else ``None``."""
    return target if isinstance(target, Sharded) else None


@runtime_checkable
class WithMemory(WithFormulas, Protocol):
    """Protocol of targets with a formula for the peak of live activations."""

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tapes of calls by (stage, invocation, part); for decode, of a step at context P.

        A part is what one :class:`~costproof.models.specs.ExportJob` exports, by its id: all of a stage, or a piece.

        Raises:
            Incomplete: values of the input decide what the run allocates.
        """


@runtime_checkable
class WithBlocks(WithFormulas, Protocol):
    """Protocol of targets whose key/value cache can be kept in blocks of tokens."""

    def blocked_cache(self, workload: Workload) -> BlockedCache | None:
        """Return the cache in blocks of tokens; ``None`` if the workload requests no blocks."""

    def token_padding(self, workload: Workload) -> tuple[TokenPadding, ...]:
        """Return the token padding of each stage; empty if the workload requests none."""


@runtime_checkable
class WithKeys(WithFormulas, Protocol):
    """Protocol of targets with closed formulas for any configuration of a family."""

    @property
    def config(self) -> Any:
        """Return the configuration, a frozen dataclass of everything that affects a cost."""

    def with_keys(self, changes: Mapping[str, Any]) -> WithKeys:
        """Return the same model with other values for some configuration keys.

        Raises:
            Problems: as :func:`~costproof.configs.config.with_keys`.
        """


@runtime_checkable
class WithCheckpoint(Target, Protocol):
    """Protocol of targets whose published checkpoint is known."""

    def checkpoint(self) -> Ledger | None:
        """Return the ledger of the published checkpoint's parameters, or ``None`` for other configurations."""


@runtime_checkable
class WithModules(Target, Protocol):
    """Protocol of targets without formulas, which a diff compares module by module."""

    def module_kinds(self) -> ModuleKinds:
        """Return the modules of the model by path."""


@runtime_checkable
class WithValues(Target, Protocol):
    """Protocol of targets with input tensors of the user, whose values may affect a run."""

    def with_values(self, workload: Workload) -> Workload:
        """Return the workload with the values of the user's input tensors."""


@runtime_checkable
class WithStorage(Target, Protocol):
    """Protocol of targets whose checkpoint has a known storage format."""

    @property
    def stored(self) -> Stored:
        """Return the properties of the checkpoint that its files state."""

    @property
    def dtype(self) -> Dtype | None:
        """Return the dtype of tensors that the checkpoint does not quantise; ``None`` if dtypes differ by parameter."""

    def build_stored(self) -> nn.Module:
        """Return the model on the meta device, in the dtype of its checkpoint's unquantised tensors."""


@runtime_checkable
class Exportable(Target, Protocol):
    """Protocol of targets whose parts ``torch.export`` can export, for the static source."""

    def build(self, workload: Workload) -> nn.Module:
        """Return the model on the meta device, in the workload's dtype, ready to run."""

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the jobs of the parts that the static source exports."""

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages that use a module, in the order of the run."""


@runtime_checkable
class PartlyExported(Exportable, Protocol):
    """Protocol of targets with stages that cannot be exported."""

    @property
    def not_exported(self) -> Mapping[str, str]:
        """Return the reason why each stage that cannot be exported cannot, by stage."""


@runtime_checkable
class Derivable(Exportable, Protocol):
    """Protocol of targets that can export a stage with more symbolic sizes than their usual exports."""

    def derivable(self, stage: str) -> tuple[Exportable, Workload, Mapping[str, int]] | None:
        """Return (target, workload, steps by symbol) with which a stage's export has all possible symbols.

        ``None`` if the default exports already have all possible symbols.
        """


@runtime_checkable
class Staged(Exportable, Protocol):
    """Protocol of targets whose stages can run separately, for the isolated source."""

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the jobs of the isolated source: each invocation of each stage, and selected decode steps."""


@runtime_checkable
class Runnable(Target, Protocol):
    """Protocol of targets that can run as a whole, for the dynamic source."""

    @property
    def options(self) -> RunOptions:
        """Return the options of the dynamic run."""

    def with_options(self, options: RunOptions) -> Runnable:
        """Return the same target with other run options; ``layers`` truncates it for all sources.

        Raises :class:`~costproof.ledger.errors.BadInput` if the options are not supported.
        """

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the model that the dynamic source runs, on meta or with values on a device.

        Raises:
            Problems: the checkpoint does not fit the model.
            BadInput: there is no checkpoint, or the installed packages cannot run the model's code.
            Incomplete: the device is not there, or no kernel of FlashAttention.
        """

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the forwards that the dynamic source traces."""


@runtime_checkable
class Truncatable(Runnable, Protocol):
    """Protocol of targets that can be truncated to first layers, from which the whole model is extrapolated."""

    def stretched(self) -> tuple[Truncation, Runnable, Truncation] | None:
        """Return this target's truncation, a target that keeps more layers, and that target's truncation.

        The second one has at least one more layer of each kind that is left out. ``None``: the model is not cut.
        """

    def uncut(self) -> Runnable:
        """Return the model with all its layers, as shapes without values."""


@runtime_checkable
class InProcess(Runnable, Protocol):
    """Protocol of targets that may exist only in this process, so that their sources run here one after another."""

    @property
    def here(self) -> bool:
        """Return whether the target is an object of this process."""


SERVES: Final[Mapping[str, tuple[type, str]]] = {
    "analytic": (WithFormulas, "the target has no formulas"),
    "static": (Exportable, "the target cannot be exported"),
    "dynamic": (Runnable, "the target cannot be run as a whole"),
    "isolated": (Staged, "the target's stages cannot be run alone"),
}
"""Protocol that each source requires, and the message for a target without it, by source."""


def lacking(target: Target, sources: Iterable[str]) -> dict[str, str]:
    """Return a reason for each requested source that the target does not support."""
    return {s: why for s in sources for needed, why in [SERVES[s]] if not isinstance(target, needed)}


def options_of(target: Target) -> RunOptions:
    """Return the run options of a target; the defaults for a target that cannot run."""
    return target.options if isinstance(target, Runnable) else RunOptions()


def run_with(target: Target, options: RunOptions) -> Target:
    """Return the target with other run options.

    Raises:
        BadInput: it cannot be run, or not with these options.
    """
    if isinstance(target, Runnable):
        return target.with_options(options)
    if options != RunOptions():
        raise BadInput(
            "this target has no dynamic source, so options of a run have no effect", where=target.name,
            fix="leave out --run, --layers, --experts, --weights and --profile",
        )  # fmt: skip
    return target


def require_device(device: RunDevice) -> None:
    """Check that torch can use a device of a run; torch is imported only for ``cuda``.

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
            fix="--run cpu, or --run meta for shapes only",
        )
