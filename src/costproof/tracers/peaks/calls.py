"""The peaks of every call of a target's stages, by graph and by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import sympy

from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.evaluate import evaluate
from costproof.ledger.peaks import CallPeaks, GapPart
from costproof.ledger.progress import Progress, silent
from costproof.ledger.series import CONTEXT, STEPS
from costproof.ledger.symbols import text
from costproof.ledger.workload import Workload
from costproof.models.jobs import ExportJob
from costproof.models.target import Exportable
from costproof.opgraph.liveness import Timeline, gap_parts, peak_of, timeline
from costproof.opgraph.peak_form import peak_form
from costproof.patches.patch import gc_disabled
from costproof.tracers.exporting import resized
from costproof.tracers.guards import margins
from costproof.tracers.peaks.eager import eager_run, holders_at
from costproof.tracers.peaks.memory import on_cpu
from costproof.tracers.peaks.program import program_of
from costproof.tracers.static import left_out

T = TypeVar("T")


def call_peaks(
    target: Exportable, workload: Workload, progress: Progress = silent, *, eager: bool = True, forms: bool = True
) -> tuple[CallPeaks, ...]:
    """The peaks of every part of a target that is exported, in each of its calls; of decode steps the last.

    A peak that cannot be found is ``None``, and a note says why. Graph peaks in symbols take a second export of a part.

    Args:
        eager: whether that of the module as written is wanted.
        forms: whether graph peaks in symbols are.
    """
    progress("peaks", 0, 1)
    found = [
        CallPeaks(stage, "", "", None, None, notes=(f"not exported: {why}",)) for stage, why in left_out(target).items()
    ]
    jobs = list(_each(target, workload))
    made: dict[str, Form] = {}
    for i, (invocation, job, values) in enumerate(jobs):
        progress("peaks", i, len(jobs))
        with gc_disabled():
            one = peaks_of(resized(job, _last(job, values)), invocation, eager=eager)
            if forms and job.sizes and one.graph is not None:
                if job.id not in made:
                    made[job.id] = form_of(job)
                one = with_form(one, made[job.id], values)
            found.append(one)
    progress("peaks", len(jobs), len(jobs))
    return tuple(found)


def calls(target: Exportable, workload: Workload) -> Iterator[tuple[str, ExportJob]]:
    """Invocations, and what runs in them, at the sizes that it has there."""
    for invocation, job, values in _each(target, workload):
        yield invocation, resized(job, _last(job, values))


def _each(target: Exportable, workload: Workload) -> Iterator[tuple[str, ExportJob, Mapping[str, int]]]:
    """Invocations, what is exported of them, and the values of the symbols there."""
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    for job in target.export_jobs(target.build(workload), workload):
        for invocation in job.invocations:
            yield invocation, job, {**target.info().symbols, **values[job.stage, invocation]}


def _last(job: ExportJob, values: Mapping[str, int]) -> dict[str, int]:
    """The values in the last of a job's steps."""
    more = values[str(STEPS)] - 1 if job.repeated else 0
    return {name: value + more if name == str(CONTEXT) else value for name, value in values.items()}


class Form(NamedTuple):
    """A graph peak in symbols, what the inputs have of it, and where it holds; or none of them, and why."""

    peak: str = ""
    given: str = ""
    holds: tuple[str, ...] = ()
    why: str = ""


def form_of(job: ExportJob) -> Form:
    """The graph peak of a job's last step."""
    try:
        found = program_of(on_cpu(job))
        peak = peak_form(timeline(found.program).events, found.sizes)
        holds = margins(job, found.guards)
    except Incomplete as error:
        return Form(why=error.line)
    last = {CONTEXT: CONTEXT + STEPS - 1} if job.repeated else {}
    given = sympy.Add(*(found.sizes[i] for i in found.program.inputs))
    of_last = [text(form.xreplace(last)) for form in (peak, given, *holds)]
    return Form(of_last[0], of_last[1], tuple(of_last[2:]))


def with_form(call: CallPeaks, form: Form, values: Mapping[str, int]) -> CallPeaks:
    """A call with its graph peak in symbols, where that is the graph peak at its sizes."""
    try:
        there = evaluate(form.peak or "0", values)
    except BadInput as error:
        form, there = Form(why=error.line), 0
    if form.peak and call.graph is not None and there != call.graph.bytes:
        form = Form(why=f"at these sizes the model takes another way than its graph in symbols, with {there:,} bytes")
    note = (f"graph peak not known in symbols: {form.why}",) if form.why else ()
    return replace(call, form=form.peak, given=form.given, holds=form.holds, notes=(*call.notes, *note))


def peaks_of(job: ExportJob, invocation: str = "", *, eager: bool = True) -> CallPeaks:
    """The peaks of one job without symbolic sizes, and what lies between them; without ``eager`` that of its graph."""
    if job.conventions:
        said = ", ".join(f"{name} {value}" for name, value in job.conventions.items())
        return CallPeaks(job.stage, invocation, job.id, None, None, notes=(f"not what runs: the export has {said}",))
    notes: dict[str, None] = {}
    graph = _tried(lambda: _graph(job, notes), "graph", notes)
    ran = _tried(lambda: _eager(job, notes), "eager", notes) if eager else None
    gap: tuple[GapPart, ...] = ()
    if graph is not None and ran is not None:
        gap = gap_parts(graph, ran, lambda event, wanted: holders_at(on_cpu(job), ran, event, wanted))
    mine, its = (None if line is None else peak_of(line) for line in (graph, ran))
    return CallPeaks(job.stage, invocation, job.id, mine, its, gap, tuple(notes))


def _graph(job: ExportJob, notes: dict[str, None]) -> Timeline:
    found = program_of(on_cpu(job))
    notes.update(dict.fromkeys(found.notes))
    return timeline(found.program)


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
