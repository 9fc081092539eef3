"""Measure what a part of a model asks of a GPU's allocator while it runs, and account for the gap to its peaks.

``requested_bytes`` is what was asked for; ``allocated_bytes`` rounds each piece up to 512 bytes. What the allocator
reserves says nothing of the model and is not read.

Peaks are computed with the results of a processor's operators. The gap is split by a second run, which records at the
dispatcher what each operator returns on the GPU, and what it asks for beyond that while it runs: its workspace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from benchmarks.real_jobs import RealRun, as_exported, as_written, with_numbers
from costproof.ledger.peaks import Peak
from costproof.models.specs import ExportJob
from costproof.models.target import Exportable
from costproof.opgraph.liveness import Timeline, gap_parts
from costproof.run.prepare import prepare
from costproof.run.request import request
from costproof.tracers.exporting import map_arguments
from costproof.tracers.peaks.calls import calls, eager_timeline, graph_timeline, peaks_of
from costproof.tracers.peaks.program import Storages

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
    of_program: tuple[tuple[str, int], ...] = ()
    """Named parts of what the program asked for beyond the graph."""
    of_module: tuple[tuple[str, int], ...] = ()
    """Named parts of what the module asked for beyond its eager peak."""

    @property
    def unnamed(self) -> tuple[int | None, int | None]:
        """Return what no part explains, of the program and of the module; ``None`` where a peak is unknown."""
        pairs = ((self.program, self.graph, self.of_program), (self.module, self.eager, self.of_module))
        program, module = (
            None if known is None else asked - known - sum(size for _, size in parts) for asked, known, parts in pairs
        )
        return program, module


class Allocator(Protocol):
    """The counters of a device's allocator: bytes that are asked for."""

    def reset(self) -> None:
        """Begin a new peak."""

    def current(self) -> int:
        """Return what is held."""

    def peak(self) -> int:
        """Return the most that was held since the last reset."""


class CudaAllocator:
    """The allocator of the current GPU."""

    def reset(self) -> None:
        """Begin a new peak."""
        torch.cuda.reset_peak_memory_stats()

    def current(self) -> int:
        """Return what is held."""
        return int(torch.cuda.memory_stats()["requested_bytes.all.current"])

    def peak(self) -> int:
        """Return the most that was held since the last reset."""
        return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])


@dataclass(frozen=True, slots=True)
class Workspace:
    """What one operator asks for beyond its results, in bytes, and what tensors hold then, its results included."""

    operator: str
    size: int
    tensors: int


class _Recorder(Storages):  # type: ignore[no-untyped-call]
    """Records the memory of tensors on one device, and the workspace of each operator."""

    def __init__(self, device: str, allocator: Allocator) -> None:
        super().__init__(lambda: "", counted=lambda tensor: tensor.device.type == device)
        self.allocator, self.workspaces = allocator, list[Workspace]()
        self._summed = self._held = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first, held = len(self.events), self.held()
        before = self.allocator.current()
        self.allocator.reset()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        asked = self.allocator.peak() - before
        made = sum(self.tensors[event.tensor].bytes for event in self.events[first:] if event.made)
        self.workspaces.append(Workspace(str(func), max(0, asked - made), held + made))
        return result

    def held(self) -> int:
        """Return the bytes that tensors hold now."""
        for event in self.events[self._summed :]:
            self._held += self.tensors[event.tensor].bytes * (1 if event.made else -1)
        self._summed = len(self.events)
        return self._held


def named_parts(known: Timeline, job: ExportJob, real: RealRun, device: str, allocator: Allocator) -> Counter[str]:
    """Return the parts of a run's peak beyond that of a timeline, by name: workspaces, results, another moment."""
    seen = _Recorder(device, allocator)
    with torch.no_grad(), seen:
        seen.apart((*job.module.parameters(), *job.module.buffers()))
        map_arguments(job, lambda path, tensor: seen.given(".".join(map(str, path)), tensor))
        result = real.run()
        line = seen.timeline()
    del result
    parts = Counter[str]()
    highest = max(line.held(), default=0)
    top = max(seen.workspaces, key=lambda one: one.tensors + one.size, default=Workspace("", 0, 0))
    if top.tensors + top.size > highest:
        parts[f"workspace of {top.operator}"] += top.size
        parts["tensors at that moment"] += top.tensors - highest
    # Modules are not known here, and results of one operator differ in shape between kernels: names are matched.
    bare = replace(known, tensors=tuple(replace(t, module="") for t in known.tensors))
    for part in gap_parts(bare, line, lambda event, wanted: {}):
        what = part.tensor.operator or "inputs" if part.tensor is not None else "another moment of the graph"
        parts[f"results of {what}" if part.tensor is not None else what] += part.bytes
    return Counter({name: size for name, size in parts.items() if size})


def requested(target: str, choices: Mapping[str, Any]) -> Iterator[Requested]:
    """Run every part of a target on the current GPU, with random numbers."""
    prepared = prepare(request(target, **{**choices, "run": "meta", "sources": ("static",)}))
    model = prepared.target
    assert isinstance(model, Exportable)
    for invocation, job in calls(model, prepared.workload):
        found = peaks_of(job, invocation, host_apart=True)
        real = with_numbers(job, device="cuda")
        exported, written = as_exported(real), as_written(real)
        program, allocated = _peak(exported)
        module, _ = _peak(written)
        sizes = [None if p is None else p.bytes for p in (found.graph, found.eager)]
        stage = f"{job.stage}, {invocation}" if invocation else job.stage
        parts = [
            () if size is None or size == asked else _named(make, job, real, run)
            for size, asked, make, run in (
                (sizes[0], program, graph_timeline, exported), (sizes[1], module, eager_timeline, written),
            )
        ]  # fmt: skip
        rounded = _rounded(found.graph)
        yield Requested(stage, sizes[0], program, sizes[1], module, rounded, allocated, parts[0], parts[1])
        del real, exported, written
        torch.cuda.empty_cache()


def _named(make: Callable[..., Timeline], job: ExportJob, real: ExportJob, run: RealRun) -> tuple[tuple[str, int], ...]:
    known = make(job, {}, host_apart=True)
    return tuple(named_parts(known, real, run, "cuda", CudaAllocator()).items())


def _rounded(peak: Peak | None) -> int | None:
    return None if peak is None else sum(_in_blocks(t.bytes) for t in peak.alive)


def _in_blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


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
    given = {"requested_bytes": real.inputs, "allocated_bytes": sum(map(_in_blocks, real.pieces))}
    asked, rounded = (
        int(after[f"{kind}.all.peak"]) - int(before[f"{kind}.all.current"]) + inputs for kind, inputs in given.items()
    )
    return asked, rounded
