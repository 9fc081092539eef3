"""The peaks of every call of a target's stages, by graph and by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from costproof.graph.liveness import Timeline, peak_of, timeline
from costproof.graph.peak_gap import gap_parts
from costproof.ledger.errors import Incomplete
from costproof.ledger.peaks import CallPeaks, GapPart
from costproof.ledger.progress import Progress, silent
from costproof.ledger.series import CONTEXT, STEPS
from costproof.ledger.workload import Workload
from costproof.models.jobs import ExportJob
from costproof.models.target import Exportable
from costproof.tracers.exported_sizes import resized
from costproof.tracers.peaks.eager import eager_run, holders_at
from costproof.tracers.peaks.on_cpu import on_cpu
from costproof.tracers.peaks.program import program_of
from costproof.tracers.readonly import uncollected
from costproof.tracers.static import left_out

T = TypeVar("T")


def call_peaks(target: Exportable, workload: Workload, progress: Progress = silent) -> tuple[CallPeaks, ...]:
    """The peaks of every part of a target that is exported, in each of its calls; of decode steps the last.

    A peak that cannot be found is ``None``, and a note says why.
    """
    progress("peaks", 0, 1)
    found = [
        CallPeaks(stage, "", "", None, None, notes=(f"not exported: {why}",)) for stage, why in left_out(target).items()
    ]
    jobs = list(calls(target, workload))
    for i, (invocation, job) in enumerate(jobs):
        progress("peaks", i, len(jobs))
        with uncollected():
            found.append(peaks_of(job, invocation))
    progress("peaks", len(jobs), len(jobs))
    return tuple(found)


def calls(target: Exportable, workload: Workload) -> Iterator[tuple[str, ExportJob]]:
    """Invocations, and what runs in them, at the sizes that it has there."""
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    for job in target.export_jobs(target.build(workload), workload):
        for invocation in job.invocations:
            known = {**target.info().symbols, **values[job.stage, invocation]}
            if job.repeated:
                known[str(CONTEXT)] += known[str(STEPS)] - 1
            yield invocation, resized(job, known)


def peaks_of(job: ExportJob, invocation: str = "") -> CallPeaks:
    """The peaks of one job without symbolic sizes, and what lies between them."""
    if job.conventions:
        said = ", ".join(f"{name} {value}" for name, value in job.conventions.items())
        return CallPeaks(job.stage, invocation, job.id, None, None, notes=(f"not what runs: the export has {said}",))
    notes: dict[str, None] = {}
    graph = _tried(lambda: _graph(job, notes), "graph", notes)
    eager = _tried(lambda: _eager(job, notes), "eager", notes)
    gap: tuple[GapPart, ...] = ()
    if graph is not None and eager is not None:
        gap = gap_parts(graph, eager, lambda event, wanted: holders_at(on_cpu(job), eager, event, wanted))
    mine, its = (None if line is None else peak_of(line) for line in (graph, eager))
    return CallPeaks(job.stage, invocation, job.id, mine, its, gap, tuple(notes))


def _graph(job: ExportJob, notes: dict[str, None]) -> Timeline:
    program, assumed = program_of(on_cpu(job))
    notes.update(dict.fromkeys(assumed))
    return timeline(program)


def _eager(job: ExportJob, notes: dict[str, None]) -> Timeline:
    found, assumed = eager_run(on_cpu(job))
    notes.update(dict.fromkeys(assumed))
    return found


def _tried(make: Callable[[], T], which: str, notes: dict[str, None]) -> T | None:
    try:
        return make()
    except Incomplete as error:
        notes[f"{which} peak not known: {error.line}"] = None
        return None
