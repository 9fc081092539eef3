"""What a part of a model asks of a GPU's allocator while it runs, beside its peaks of liveness: a judge of both.

``requested_bytes`` is what was asked for; ``allocated_bytes`` rounds each piece up to 512 bytes. What the allocator
reserves says nothing of the model and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.real_jobs import RealRun, as_exported, as_written, with_numbers
from costproof.ledger.peaks import Peak
from costproof.models.target import Exportable
from costproof.run.prepare import prepare
from costproof.run.request import request
from costproof.tracers.peaks.calls import calls, peaks_of

BLOCK = 512
"""Bytes to which the allocator rounds each piece."""


@dataclass(frozen=True, slots=True)
class Requested:
    """One call of a stage, in bytes, with its inputs and without its parameters."""

    stage: str
    graph: int | None
    program: int
    """Asked for by the exported program."""
    eager: int | None
    module: int
    """Asked for by the module as it is written."""
    rounded: int | None
    """What is alive at the peak of the graph, each tensor rounded up to the allocator's blocks."""
    allocated: int
    """By the exported program, as the allocator rounds it."""


def requested(target: str, choices: Mapping[str, Any]) -> Iterator[Requested]:
    """Run every part of a target on the current GPU, with random numbers."""
    prepared = prepare(request(target, **{**choices, "run": "meta", "sources": ("static",)}))
    model = prepared.target
    assert isinstance(model, Exportable)
    for invocation, job in calls(model, prepared.workload):
        found = peaks_of(job, invocation)
        real = with_numbers(job, device="cuda")
        program, allocated = _peak(as_exported(real))
        module, _ = _peak(as_written(real))
        sizes = [None if p is None else p.bytes for p in (found.graph, found.eager)]
        stage = f"{job.stage}, {invocation}" if invocation else job.stage
        yield Requested(stage, sizes[0], program, sizes[1], module, _rounded(found.graph), allocated)
        del real
        torch.cuda.empty_cache()


def _rounded(peak: Peak | None) -> int | None:
    return None if peak is None else sum(-(-t.bytes // BLOCK) * BLOCK for t in peak.alive)


def _peak(real: RealRun) -> tuple[int, int]:
    """Asked for and allocated at the most while something runs, beyond what was there but its inputs."""
    with torch.no_grad():
        real.run()  # what kernels and libraries take once, and keep
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        result = real.run()
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats()
    del result
    asked, rounded = (
        int(after[f"{kind}.all.peak"]) - int(before[f"{kind}.all.current"]) + real.inputs
        for kind in ("requested_bytes", "allocated_bytes")
    )
    return asked, rounded
