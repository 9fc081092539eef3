"""A part of a model with numbers on a device, as it is written and as an exported program: what runs beside a peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.utils._pytree import tree_iter

from costproof.models.specs import ExportJob
from costproof.patches.inference import inference_context
from costproof.patches.modules import forward_redirected
from costproof.snapshots.copies import alike, with_tensors
from costproof.tracers.exporting import map_arguments


@dataclass(frozen=True, slots=True)
class RealRun:
    """Something to run, and the bytes of its inputs, which are alive from its beginning."""

    run: Callable[[], object]
    pieces: tuple[int, ...]
    """Bytes of each piece of memory of the inputs."""

    @property
    def inputs(self) -> int:
        """Return the bytes of all inputs."""
        return sum(self.pieces)


def with_numbers(job: ExportJob, seed: int = 0, device: str = "cpu") -> ExportJob:
    """The job on a device: small normal numbers, and 0 for whole ones."""
    draw = torch.Generator(device).manual_seed(seed)

    def made(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return torch.zeros_like(tensor, device=device)
        return torch.empty_like(tensor, device=device).normal_(0, 0.02, generator=draw)

    module, given = with_tensors(job.module, made), alike(dict(job.args), made)
    return replace(job, module=module, args=map_arguments(job, lambda _, tensor: given(tensor)))


def as_written(job: ExportJob) -> RealRun:
    """The module itself."""

    def run() -> object:
        with inference_context(job.module):
            return job.module(**job.args)

    return RealRun(run, _inputs(job))


def as_exported(job: ExportJob) -> RealRun:
    """Its exported program, made of tensors with numbers."""
    with inference_context(job.module), forward_redirected(job.module):
        program = torch.export.export(job.module, (), kwargs=dict(job.args), strict=False).module()
    return RealRun(lambda: program(**job.args), _inputs(job))


def _inputs(job: ExportJob) -> tuple[int, ...]:
    memories = [t.untyped_storage() for t in tree_iter(job.args) if isinstance(t, torch.Tensor)]
    return tuple({memory._cdata: memory.nbytes() for memory in memories}.values())
