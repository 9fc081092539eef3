"""A job on the CPU without numbers: operators take the ways that they take there, and nothing is computed or held.

On meta some take others: attention that is fused on the CPU is made of matrix products there, which hold the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from costproof.models.generic.alike import alike
from costproof.models.generic.copies import with_tensors
from costproof.models.jobs import ExportJob
from costproof.opgraph.paths import renamer
from costproof.tracers.exported_sizes import each_argument
from costproof.tracers.paths import Paths, unwrapped


@dataclass(frozen=True, slots=True)
class OnCpu:
    """A job, and the mode that its tensors belong to."""

    job: ExportJob
    mode: FakeTensorMode


def on_cpu(job: ExportJob) -> OnCpu:
    """The job with a copy of its module and its inputs on the CPU, without numbers.

    Raises:
        Incomplete: the module cannot be copied.
    """
    mode = FakeTensorMode()

    def imitated(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")

    module, given = with_tensors(job.module, imitated), alike(dict(job.args), imitated)
    return OnCpu(replace(job, module=module, args=each_argument(job, lambda _, tensor: given(tensor))), mode)


def namer(job: ExportJob) -> Callable[[str], str | None]:
    """From paths inside a job's module to paths from the root of the model; ``None`` for scaffolding."""
    paths, rename = Paths(job.module), renamer({unwrapped(inner): outer for inner, outer in job.prefix.items()})
    return lambda path: rename(paths.module(path))
