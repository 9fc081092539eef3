"""An encoder of transformers as a target, one stage and one call: all that does not depend on what it reads."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import CostproofError, Problems
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.workload import Attention, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.encoding.config import EncoderConfig
from costproof.models.encoding.names import STAGE, place
from costproof.models.jobs import Built, ExportJob, Run, SymbolicSize
from costproof.models.native import Native
from costproof.models.stretch import layers_cut
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.models.encoding.domain import Domain
    from costproof.models.proof import Proof

C = TypeVar("C", bound=EncoderConfig)
Tensors = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class EncoderTarget(Native[C]):
    """An encoder of transformers with one configuration."""

    stages: ClassVar[tuple[str, ...]] = (STAGE,)
    attentions: ClassVar[tuple[Attention, ...]] = ("sdpa", "eager")
    """Implementations of attention that the class of transformers has, the usual one first."""
    own_settings: ClassVar[tuple[Setting, ...]]
    """What can be chosen about its input."""
    batched: ClassVar[bool] = True
    """Whether several inputs make one run."""
    named: ClassVar[tuple[NamedWorkload, ...]]
    """Its presets."""

    @abstractmethod
    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""

    @abstractmethod
    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""

    @abstractmethod
    def usual(self, name: str) -> Workload:
        """The workload of a preset."""

    @abstractmethod
    def with_own(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """The workload with settings of its own, which it takes out of ``given``; what is wrong goes to ``found``."""

    @abstractmethod
    def values(self, workload: Workload) -> dict[str, int]:
        """Values of the workload's symbols."""

    @abstractmethod
    def takes(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """Shapes and dtypes of what one forward takes."""

    @abstractmethod
    def example(self, workload: Workload) -> tuple[Tensors, tuple[SymbolicSize, ...]]:
        """Tensors for an export, and the sizes that it keeps as symbols: above 1 and pairwise different."""

    @abstractmethod
    def domain(self) -> Domain:
        """What a proof ranges over."""

    @classmethod
    @abstractmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[EncoderTarget[Any], dict[str, bool]]:
        """A random small configuration for a proof; and of the things that are not numbers, whether it has them.

        Args:
            p: values of the parameters that :meth:`domain` names.
            rng: for what is not a size.
        """

    @abstractmethod
    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """The input of a draw, put into a workload without one."""

    @classmethod
    def describes(cls, architecture: str) -> bool:
        """Whether the formulas describe this class of transformers."""
        return architecture in type(cls.default().config).architectures

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """What a forward takes beside tensors."""
        return {}

    def native(self) -> tuple[Any, Any]:
        """The class of transformers, and a configuration object of it."""
        import transformers

        config = transformers.CONFIG_MAPPING[self.config.model_type](**self.config.native())
        return getattr(transformers, self.config.architecture), config

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """What can be chosen about a run beside the preset."""
        batch = (common.BATCH,) if cls.batched else ()
        return (*cls.own_settings, *batch, common.DTYPE, replace(common.ATTENTION, choices=cls.attentions))

    @classmethod
    def presets(cls) -> tuple[NamedWorkload, ...]:
        """The named workloads."""
        return cls.named

    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """The first layers of the encoder, all else as it was."""
        kept, cut = layers_cut("encoder", layers, 1, self.config.layers)
        return replace(self.config, layers=kept), {"encoder layers": cut} if cut else {}

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """A preset with changes."""
        named = {p.name: p for p in self.presets()}
        default = next(p.name for p in named.values() if p.default)
        usual = self.usual(common.known_preset(preset or default, named))
        plain = replace(usual, dtype=self.dtype, attention=self.attentions[0])
        problems: list[CostproofError] = []
        started = self.with_own(plain, given, problems)
        made = common.changed(started, given, self.settings(), problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        self.check(made)
        return made if made == plain else replace(made, name="custom")

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Everything that keeps the model from running a workload."""
        return common.batch_problems(workload)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """One call, with the values of its symbols."""
        return (Invocation(STAGE, STAGE, 1, self.values(workload), tuple(self.takes(workload).values())),)

    def inputs(self, workload: Workload) -> Tensors:
        """Tensors of one forward, on meta."""
        import torch

        return {
            name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
            for name, spec in self.takes(workload).items()
        }

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device."""
        from costproof.models.decoding.build import build

        base, config = self.native()
        return build(base, config, dtype=workload.dtype, attention=workload.attention)

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """The model that the dynamic source runs, on meta or with numbers.

        Raises:
            Problems: the checkpoint does not fit.
            Incomplete: the device is not there.
        """
        from costproof.models.decoding.build import with_numbers
        from costproof.models.decoding.decoder import Decoder

        return with_numbers(self.build(workload), workload, Decoder(), self.options, progress)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """The stage that a module works in."""
        return self.stages

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The whole model, at example sizes."""
        args, sizes = self.example(workload)
        return (self._job(model, workload, args, sizes),)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The same at the sizes of the workload."""
        return (self._job(model, workload, self.inputs(workload), ()),)

    def _job(self, model: nn.Module, workload: Workload, args: Tensors, sizes: tuple[SymbolicSize, ...]) -> ExportJob:
        from costproof.models.generic.modules import around

        module = around(model, tuple(args), self.arguments(workload))
        return ExportJob(STAGE, STAGE, (STAGE,), module, {"part": ""}, args, sizes)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """One forward."""
        from costproof.models.encoding.runs import real

        kwargs = {**self.inputs(workload), **self.arguments(workload)}
        run = Run(STAGE, model, kwargs, place)
        on_meta = next(model.parameters()).device.type == "meta"
        return (run if on_meta else real(run, self.highest(), self.options.seed),)

    def highest(self) -> int:
        """Ids in an input are below this."""
        return 1

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """None: a run has no sizes to enumerate."""
        return ()

    def proof(self, samples: int, seed: int) -> Proof:
        """The stage with its sizes as symbols, and random configurations."""
        from costproof.models.encoding.domain import proof

        return proof(self, samples, seed)
