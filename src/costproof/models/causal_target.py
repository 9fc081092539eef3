"""A causal language model of transformers as a target: all but its configuration and its formulas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.conventions import Conventions
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.node import Ledger
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models import causal
from costproof.models import settings as common
from costproof.models.target import Built, ExportJob, NamedWorkload, Run, Setting, StageRun

if TYPE_CHECKING:
    from torch import nn

PRESETS: Final = (
    NamedWorkload("chat", "a prompt of 512 tokens", {"text": 512}, default=True),
    NamedWorkload("document", "a prompt of 8192 tokens", {"text": 8192}),
)
SETTINGS: Final[tuple[Setting, ...]] = (
    common.TEXT_TOKENS,
    common.NEW_TOKENS,
    common.BATCH,
    common.DTYPE,
    replace(common.ATTENTION, choices=("sdpa", "eager")),
    common.LOGITS,
)


class DecoderConfig(Protocol):
    """What is asked of a configuration, whatever the family."""

    @property
    def layers(self) -> int:
        """Decoder layers."""
        ...

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model is made for."""
        ...

    @property
    def waived(self) -> tuple[tuple[str, str], ...]:
        """Keys of the file that were read and not used, with the reason."""
        ...

    def config_hash(self) -> str:
        """First twelve hex digits of the SHA-256 of all that decides a cost."""
        ...

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        ...


C = TypeVar("C", bound=DecoderConfig)


@dataclass(frozen=True, slots=True)
class CausalTarget(ABC, Generic[C]):
    """A decoder with one configuration, counted on meta: a prompt, and decode steps. Instances are picklable."""

    config: C
    name: str
    options: RunOptions = field(default_factory=RunOptions)
    cut: tuple[tuple[str, str], ...] = ()
    """What ``options.layers`` left out of ``config``, which is cut already."""
    how: ClassVar[causal.Causal] = causal.Causal()

    @abstractmethod
    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""

    @abstractmethod
    def model(self, workload: Workload) -> nn.Module:
        """The model in the workload's dtype; it is called where the default device is meta."""

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """What can be chosen about a run beside the preset."""
        return SETTINGS

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Prompts of two lengths."""
        return PRESETS

    def info(self) -> TargetInfo:
        """The target as data."""
        return TargetInfo(
            name=self.name,
            implementation="native",
            config_hash=self.config.config_hash(),
            symbols=self.config.symbols(),
            stages=causal.STAGES,
            waived=dict(self.config.waived),
            cut=dict(self.cut),
        )

    def with_options(self, options: RunOptions) -> CausalTarget[C]:
        """The same model, run in another way; with ``layers``, its first ones.

        Raises:
            BadInput: a real run, or more layers than there are.
        """
        if options.real:
            raise BadInput("this target runs on shapes alone", where="--run", expected="meta", got=options.device)
        if options.layers is None or options.layers == self.options.layers:
            return replace(self, options=options)
        whole = self.config.layers
        if not 1 <= options.layers <= whole:
            raise BadInput("not a number of layers", where="--layers", expected=f"1 to {whole}", got=options.layers)
        small: Any = replace(self.config, layers=options.layers)  # type: ignore[type-var]
        cut = {"decoder layers": f"{options.layers} of {whole}"} if options.layers < whole else {}
        return replace(self, config=small, options=options, cut=tuple(cut.items()))

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """A preset with changes.

        Raises:
            Problems: everything that is wrong with the settings.
        """
        made = common.text_workload(preset, PRESETS, **settings)
        self.check(made)
        return made

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        return {**RUN_SYMBOLS, **DECODER_SYMBOLS}

    def conventions(self, workload: Workload) -> Conventions:
        """The conventions of all numbers made for this workload."""
        return Conventions(logits=workload.logits, attention=workload.attention, dtype=workload.dtype)

    def check(self, workload: Workload) -> None:
        """Check that the model can run the workload.

        Raises:
            Problems: everything that keeps it from it.
        """
        problems = common.text_problems(workload, self.config.max_positions)
        if problems:
            raise Problems("the workload cannot be run", problems)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """The prompt and the steps, with the values of their symbols."""
        return causal.invocations(workload)

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device, in the workload's dtype."""
        import torch

        with torch.device("meta"):
            return self.model(workload).eval()

    def build_run(self, workload: Workload, progress: Callable[[str, int, int], None]) -> Built:
        """The model that the dynamic source runs, on meta."""
        return Built(self.build(workload))

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Every module works in both stages."""
        return causal.STAGES

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """What the static source has to export."""
        return causal.export_jobs(model, workload, self.how)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """What the dynamic source has to trace."""
        return causal.runs(model, workload, self.how)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[StageRun, ...]:
        """What the isolated source has to trace."""
        return causal.stage_runs(model, workload, self.how)
