"""Define the base class of targets that are an encoder of transformers: one stage and one forward."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from costproof.ledger.errors import CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.encoding import STAGE, place
from costproof.models.encoding.config import EncoderConfig
from costproof.models.native import Native
from costproof.models.specs import ExportJob, Run, SymbolicSize, layers_cut
from costproof.models.target import Setting

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.models.encoding.domain import Domain

C = TypeVar("C", bound=EncoderConfig)
Tensors = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class EncoderTarget(Native[C]):
    """Base class of targets: an encoder of transformers in a given configuration."""

    stages: ClassVar[tuple[str, ...]] = (STAGE,)
    input_settings: ClassVar[tuple[Setting, ...]]
    """Settings of the input size."""
    batched: ClassVar[bool] = True
    """Whether a run may have more than one text or image."""

    @abstractmethod
    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``)."""

    @abstractmethod
    def values(self, workload: Workload) -> dict[str, int]:
        """Return the values of the workload's symbols."""

    @abstractmethod
    def takes(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """Return the shapes and dtypes of the input tensors of one forward, by argument name."""

    @abstractmethod
    def example(self, workload: Workload) -> tuple[Tensors, tuple[SymbolicSize, ...]]:
        """Return input tensors for an export, and their symbolic dimensions; all example sizes differ and exceed 1."""

    @abstractmethod
    def domain(self) -> Domain:
        """Return the domain of a proof."""

    @classmethod
    @abstractmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[EncoderTarget[Any], dict[str, bool]]:
        """Draw a random small configuration; return its target, and whether it has each feature.

        Args:
            p: values of the parameters of :meth:`domain`.
            rng: source of all choices that are not sizes.
        """

    @abstractmethod
    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with randomly drawn input sizes."""

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """Return the keyword arguments of a forward that are not tensors."""
        return {}

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        batch = (common.BATCH,) if cls.batched else ()
        return (*cls.input_settings, *batch, common.DTYPE, replace(common.ATTENTION, choices=cls.attentions))

    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """Return the configuration truncated to its first layers, and a description of the truncation."""
        kept, cut = layers_cut("encoder", layers, 1, self.config.layers)
        return replace(self.config, layers=kept), {"encoder layers": cut} if cut else {}

    def problems(self, workload: Workload) -> list[CostproofError]:
        head_dim = getattr(self.config, "head_dim", 0)
        return common.batch_problems(workload, head_dim) + common.device_problems(workload, self.options)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the only invocation of the encoder, with the values of its symbols."""
        return (Invocation(STAGE, STAGE, 1, self.values(workload), tuple(self.takes(workload).values())),)

    def inputs(self, workload: Workload) -> Tensors:
        """Return the input tensors of a forward on the meta device."""
        import torch

        return {
            name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
            for name, spec in self.takes(workload).items()
        }

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export job of the whole model at example sizes."""
        args, sizes = self.example(workload)
        return (self._job(model, workload, args, sizes),)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the job of the whole model at the sizes of the workload."""
        return (self._job(model, workload, self.inputs(workload), ()),)

    def _job(self, model: nn.Module, workload: Workload, args: Tensors, sizes: tuple[SymbolicSize, ...]) -> ExportJob:
        from costproof.models.generic.export_wrappers import around

        module = around(model, tuple(args), self.arguments(workload))
        return ExportJob(STAGE, STAGE, (STAGE,), module, {"part": ""}, args, sizes)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the run of one forward."""
        kwargs = {**self.inputs(workload), **self.arguments(workload)}
        run = Run(STAGE, model, kwargs, place)
        on_meta = next(model.parameters()).device.type == "meta"
        return (run if on_meta else _with_values(run, self.id_limit(), self.options.seed),)

    def id_limit(self) -> int:
        """Return the exclusive upper bound of integer inputs (token ids)."""
        return 1


def _with_values(run: Run, id_limit: int, seed: int) -> Run:
    """Return the run with random inputs in place of meta tensors, and with the output that tracing must reproduce.

    Args:
        id_limit: exclusive upper bound of random integers; floats are drawn from a normal distribution.
    """
    import torch

    from costproof.weights.random_values import random_integers, random_normal

    device = next(run.model.parameters()).device

    def drawn(name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_floating_point:
            return random_normal(shape, seed, name, device, dtype)
        return random_integers(id_limit, shape, seed, name).to(device)

    kwargs = {k: drawn(k, v.shape, v.dtype) if isinstance(v, torch.Tensor) else v for k, v in run.kwargs.items()}
    with torch.no_grad():
        return replace(run, kwargs=kwargs, expected=run.model(**kwargs)[0])
