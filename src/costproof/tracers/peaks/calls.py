"""Compute the activation memory peaks of every call of a target's stages, for the graph and for the eager module."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

import sympy
import torch

from costproof.algebra.evaluation import evaluate
from costproof.algebra.series import CONTEXT, STEPS
from costproof.algebra.symbols import text
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Recount, check_recounts, first_line
from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.specs import ExportJob
from costproof.models.target import Exportable, options_of
from costproof.opgraph.liveness import (
    OUTSIDE,
    LayerEvent,
    LayerStack,
    MemoryProgram,
    Timeline,
    composed,
    events_by_layer,
    gap_parts,
    outside_constants,
    peak_form,
    peak_of,
    predicted,
    released_peak,
    timeline,
)
from costproof.patches.inference import inference_context
from costproof.patches.modules import hooked
from costproof.patches.nested import watched
from costproof.patches.patch import gc_disabled
from costproof.tracers.equal_layers import truncated_by_kinds
from costproof.tracers.exporting import map_arguments, with_sizes
from costproof.tracers.guards import margins
from costproof.tracers.peaks.program import (
    FakeCpuJob,
    HostTensors,
    Storages,
    exported_memory,
    module_namer,
    on_fake_cpu,
)
from costproof.tracers.static import stages_not_exported

T = TypeVar("T")


def call_peaks(
    target: Exportable, workload: Workload, progress: Progress = silent, *, eager: bool = True, forms: bool = True
) -> tuple[CallPeaks, ...]:
    """Return the memory peaks of every exported part of a target in each call; for decode those of the last step.

    A peak that cannot be computed is ``None``, with a note. Symbolic graph peaks need a second export of a part. In a
    run on a GPU only tensors on the GPU count.

    Args:
        eager: also compute the peak of the module as written.
        forms: also compute symbolic graph peaks.
    """
    progress("peaks", 0, 1)
    found = [
        CallPeaks(stage, "", "", None, None, notes=(f"not exported: {why}",))
        for stage, why in stages_not_exported(target).items()
    ]
    jobs = list(_calls(target, workload))
    made: dict[str, SymbolicPeak] = {}
    apart = options_of(target).device == "cuda"
    for i, (invocation, job, values) in enumerate(jobs):
        progress("peaks", i, len(jobs))
        with gc_disabled():
            one = peaks_of(with_sizes(job, _last_step(job, values)), invocation, eager=eager, host_apart=apart)
            if forms and job.sizes and one.graph is not None:
                if job.id not in made:
                    made[job.id] = symbolic_peak(job, host_apart=apart)
                one = with_symbolic_peak(one, made[job.id], values)
            found.append(one)
    progress("peaks", len(jobs), len(jobs))
    return tuple(found)


def calls(
    target: Exportable, workload: Workload, model: torch.nn.Module | None = None
) -> Iterator[tuple[str, ExportJob]]:
    """Yield each invocation with the export job that runs in it, at the sizes of the invocation.

    Args:
        model: the model, if it is built.
    """
    for invocation, job, values in _calls(target, workload, model):
        yield invocation, with_sizes(job, _last_step(job, values))


def _calls(
    target: Exportable, workload: Workload, model: torch.nn.Module | None = None
) -> Iterator[tuple[str, ExportJob, Mapping[str, int]]]:
    """Yield each invocation with its export job and the values of all symbols."""
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    for job in target.export_jobs(target.build(workload) if model is None else model, workload):
        for invocation in job.invocations:
            yield invocation, job, {**target.info().symbols, **values[job.stage, invocation]}


def cache_held(target: Exportable, workload: Workload) -> int:
    """Return the bytes of the states that the last call gets, such as the cache of the last decode step; 0: none."""
    *_, (_, job) = calls(target, workload)
    held: list[int] = []
    map_arguments(job, lambda _, tensor: held.append(tensor.nbytes if tensor.is_floating_point() else 0))
    return sum(held)


def _last_step(job: ExportJob, values: Mapping[str, int]) -> dict[str, int]:
    """Return the symbol values in the last of a job's repeated decode steps."""
    more = values[str(STEPS)] - 1 if job.repeated else 0
    return {name: value + more if name == str(CONTEXT) else value for name, value in values.items()}


Confirmed = dict[str, Mapping[int, int]]
"""For each job whose program was shown to be composed from that of a truncated model, by id: the number of constants
that the whole model copies outside of its layers in addition, by bytes."""


def released_peaks(
    target: Exportable,
    workload: Workload,
    progress: Progress = silent,
    confirmed: Confirmed | None = None,
    stages: Collection[str] = (),
) -> dict[str, int]:
    """Return each stage's largest graph peak if each input is released after its last reader.

    For a model with several layers of each kind, the peaks follow from the graph of a truncated model, if
    :func:`_from_kinds` shows so.

    Args:
        confirmed: what runs of the whole model have shown at other sizes; those of this call are added.
        stages: the only stages that are looked at; empty for all.

    Raises:
        Incomplete: a peak is unknown.
    """
    if missing := stages_not_exported(target):
        stage, why = next(iter(missing.items()))
        raise Incomplete("the graph peak cannot be computed", where=stage, got=f"not exported: {why}")
    progress("peaks", 0, 1)
    model = target.build(workload)
    if confirmed and (known := _as_confirmed(target, workload, model, confirmed, progress, stages)) is not None:
        return _highest(known)
    whole = _of_stages(calls(target, workload, model), stages)
    for job in whole:
        if job.conventions:
            raise Incomplete(
                "the graph peak cannot be computed",
                where=job.stage,
                got="the exported graph differs from what runs, by its conventions",
            )
    shown = {} if confirmed is None else confirmed
    programs = _from_kinds(target, workload, model, whole, progress, shown)
    if programs is None:
        for job in whole:
            shown.pop(job.id, None)
        programs = []
        for i, job in enumerate(whole):
            progress("peaks", i, len(whole))
            with gc_disabled():
                programs.append(_program(job))
    progress("peaks", len(whole), len(whole))
    return _highest(list(zip((job.stage for job in whole), programs, strict=True)))


def _of_stages(of: Iterable[tuple[str, ExportJob]], stages: Collection[str]) -> list[ExportJob]:
    """Return the jobs of these stages, or all jobs if there are none."""
    return [job for _, job in of if not stages or job.stage in stages]


def _highest(programs: Sequence[tuple[str, MemoryProgram]]) -> dict[str, int]:
    """Return the largest peak of each stage, of the programs of its calls."""
    found: dict[str, int] = {}
    for stage, program in programs:
        most = max(timeline(program, inputs_held=False).held(), default=0)
        check_recounts([Recount("memory", f"{stage}, each input released", "live_bytes", most, released_peak(program))])
        found[stage] = max(found.get(stage, 0), most)
    return found


def _as_confirmed(
    target: Exportable,
    workload: Workload,
    model: torch.nn.Module,
    confirmed: Confirmed,
    progress: Progress,
    stages: Collection[str] = (),
) -> list[tuple[str, MemoryProgram]] | None:
    """Return the stage and the memory program of each call, composed from graphs of a truncated model alone.

    That a run of the whole model does in each layer what a layer of its kind does was shown at other sizes. ``None``
    unless layers of a kind do the same here too.
    """
    try:
        if (found := truncated_by_kinds(target, workload, model)) is None:
            return None
        cut, stacks = found
        few = _of_stages(calls(cut, workload), stages)
        if not {job.id for job in few} <= confirmed.keys():
            return None
        made = []
        for i, job in enumerate(few):
            progress("peaks", i, len(few))
            with gc_disabled():
                composition = composed(_program(job), stacks, constants=confirmed[job.id])
            if composition is None:
                return None
            made.append((job.stage, composition.program))
    except Exception:  # as below
        return None
    progress("peaks", len(made), len(made))
    return made


def _program(job: ExportJob) -> MemoryProgram:
    return exported_memory(on_fake_cpu(job)).program


def _from_kinds(
    target: Exportable,
    workload: Workload,
    model: torch.nn.Module,
    whole: Sequence[ExportJob],
    progress: Progress,
    confirmed: Confirmed | None = None,
) -> list[MemoryProgram] | None:
    """Compose the memory program of each call's graph from that of a truncated model.

    ``None`` unless layers of a kind do the same in the truncated model's graphs
    (:func:`~costproof.opgraph.liveness.composed`), the program has the inputs of the whole model, and a run of the
    whole module does in each layer, and outside of them, what one of the truncated module does.

    Args:
        model: the whole model.
        whole: the jobs of all calls, at their sizes.
        confirmed: gets the constants of each job.
    """
    try:
        if (found := truncated_by_kinds(target, workload, model)) is None:
            return None
        cut, stacks = found
        few = _of_stages(calls(cut, workload), {job.stage for job in whole})
        names = [[(job.id, job.stage, job.conventions) for job in jobs] for jobs in (few, whole)]
        if names[0] != names[1]:
            return None
        every = []
        for i, (job, own) in enumerate(zip(few, whole, strict=True)):
            progress("peaks", i, len(whole))
            with gc_disabled():
                made = _composed(job, own, stacks)
            if made is None:
                return None
            every.append(made[0])
            if confirmed is not None:
                confirmed[job.id] = made[1]
    except Exception:  # of a truncated model, or of third-party code: the export of the whole model reports errors
        return None
    return every


def _composed(
    few: ExportJob, whole: ExportJob, stacks: Sequence[LayerStack]
) -> tuple[MemoryProgram, Mapping[int, int]] | None:
    """Return the memory program of the whole module's graph, and the further constants that it copies.

    ``None``: it is not shown to be that.
    """
    ran, own = (eager_run(on_fake_cpu(job))[0] for job in (few, whole))
    given, seen = predicted(events_by_layer(ran, stacks), stacks), events_by_layer(own, stacks)
    outside, expected = Counter(seen.pop(OUTSIDE, ())), Counter(given.pop(OUTSIDE, ()))
    # Only numbers in the caches of layers are made outside of these, as constants.
    if given != seen or expected - outside or any(e.operator != _CONSTANT for e in outside - expected):
        return None
    program = _program(few)
    copied, made, more = (
        outside_constants(program, stacks), *(_constants(each) for each in (expected, outside - expected))
    )  # fmt: skip
    if copied and copied != made:  # a graph copies all constants of a run, or has them as attributes
        return None
    constants = more if copied else {}
    composition = composed(program, stacks, constants=constants)
    if composition is None or _inputs(composition.program.tensors) != _inputs(own.tensors):
        return None
    return composition.program, constants


_CONSTANT: Final = "aten.lift_fresh.default"


def _constants(events: Counter[LayerEvent]) -> Counter[int]:
    """Return the number of constants that are not empty, by their bytes."""
    found: Counter[int] = Counter()
    for event, count in events.items():
        found[event.bytes] += count if event.operator == _CONSTANT and event.bytes else 0
    return +found


def _inputs(tensors: Sequence[LiveTensor]) -> list[tuple[str, int, tuple[int, ...]]]:
    return sorted((t.dtype, t.bytes, t.shape) for t in tensors if not t.operator)


def released_forms(target: Exportable, workload: Workload, stages: Collection[str] = ()) -> tuple[CallPeaks, ...]:
    """Return every call once for each moment that may be its graph peak, with the bytes that are alive then.

    Each input is released after its last reader. For a model with several layers of each kind, the moments are those of
    programs composed from a truncated model. No run of the whole module confirms these graphs: they only propose sizes
    to examine.

    Args:
        stages: the only stages that are looked at; empty for all.

    Raises:
        Incomplete: a peak is not known as a formula.
    """
    found = truncated_by_kinds(target, workload)
    if found is not None:
        with suppress(CostproofError):  # otherwise of the whole model
            return tuple(_forms(*found, workload, stages))
    return tuple(_forms(target, (), workload, stages))


def _forms(
    target: Exportable, stacks: Sequence[LayerStack], workload: Workload, stages: Collection[str] = ()
) -> Iterator[CallPeaks]:
    """Yield the moments of a model, or of the whole model that a truncated one with these stacks is a part of.

    Raises:
        Incomplete: an export has no such peak, or layers of a kind differ.
    """
    made: dict[str, sympy.Expr] = {}
    for invocation, job, _ in _calls(target, workload):
        if stages and job.stage not in stages:
            continue
        if job.id not in made:
            with gc_disabled():
                memory = exported_memory(on_fake_cpu(job))
            program, sizes = memory.program, memory.sizes
            if stacks:
                # A graph in symbols reads a size where it is needed first, in one layer alone.
                steps = tuple(step for step in program.steps if step.events or len(step.reads) > 1)
                whole = composed(replace(program, steps=steps), stacks, sizes)
                if whole is None:
                    raise Incomplete("layers of one kind differ in memory", where=job.id)
                program, sizes = whole.program, tuple(sizes[at] for at in whole.origin)
            last = {CONTEXT: CONTEXT + STEPS - 1} if job.repeated else {}
            events = timeline(program, inputs_held=False).events
            made[job.id] = peak_form(events, sizes, inf).xreplace(last)
        for moment in made[job.id].args if made[job.id].func == sympy.Max else (made[job.id],):
            yield CallPeaks(job.stage, invocation, job.id, None, None, form=text(moment))


class SymbolicPeak(NamedTuple):
    """A symbolic memory peak, the part of it that inputs take, and conditions on sizes; or a reason for its absence."""

    peak: str = ""
    given: str = ""
    holds: tuple[str, ...] = ()
    why: str = ""


def symbolic_peak(job: ExportJob, *, host_apart: bool = False) -> SymbolicPeak:
    """Return the graph peak of a job's only run, or of its last decode step, as a formula."""
    try:
        with HostTensors() if host_apart else nullcontext():
            found = exported_memory(on_fake_cpu(job, host_apart=host_apart))
        peak = peak_form(timeline(found.program).events, found.sizes)
        holds = margins(job, found.guards)
    except Incomplete as error:
        return SymbolicPeak(why=error.line)
    last = {CONTEXT: CONTEXT + STEPS - 1} if job.repeated else {}
    given = sympy.Add(*(found.sizes[i] for i in found.program.inputs))
    of_last = [text(form.xreplace(last)) for form in (peak, given, *holds)]
    return SymbolicPeak(of_last[0], of_last[1], tuple(of_last[2:]))


def with_symbolic_peak(call: CallPeaks, form: SymbolicPeak, values: Mapping[str, int]) -> CallPeaks:
    """Add a symbolic peak to the peaks of a call, if it equals the graph peak at the call's sizes."""
    try:
        there = evaluate(form.peak or "0", values)
    except BadInput as error:
        form, there = SymbolicPeak(why=error.line), 0
    if form.peak and call.graph is not None and there != call.graph.bytes:
        form = SymbolicPeak(
            why=f"at these sizes the model takes another branch than its graph in symbols, with {there:,} bytes"
        )
    if form.peak and call.graph is not None:
        inputs = sum(tensor.bytes for tensor in call.graph.alive if not tensor.operator)
        check_recounts([Recount(call.stage, call.part, "given", evaluate(form.given or "0", values), inputs)])
    note = (f"graph peak not known in symbols: {form.why}",) if form.why else ()
    return replace(call, form=form.peak, given=form.given, holds=form.holds, notes=(*call.notes, *note))


def peaks_of(job: ExportJob, invocation: str = "", *, eager: bool = True, host_apart: bool = False) -> CallPeaks:
    """Return the graph and eager memory peaks of a job at constant sizes, with the parts of their difference.

    Args:
        eager: also compute the peak of the module as written.
        host_apart: leave out tensors on the host of a GPU, which code creates without naming the model's device.
    """
    found = _peaks(job, invocation, eager, host_apart)
    if not host_apart or job.conventions or (found.graph is not None and (found.eager is not None or not eager)):
        return found
    plain = _peaks(job, invocation, eager, host_apart=False)
    return replace(plain, notes=(*plain.notes, "tensors on the host count too: they are not told apart"))


def _peaks(job: ExportJob, invocation: str, eager: bool, host_apart: bool) -> CallPeaks:
    if job.conventions:
        said = ", ".join(f"{name} {value}" for name, value in job.conventions.items())
        return CallPeaks(job.stage, invocation, job.id, None, None, notes=(f"not what runs: the export has {said}",))
    notes: dict[str, None] = {}
    graph = _peak_or_note(lambda: graph_timeline(job, notes, host_apart=host_apart), "graph", notes)
    ran = _peak_or_note(lambda: eager_timeline(job, notes, host_apart=host_apart), "eager", notes) if eager else None
    gap: tuple[GapPart, ...] = ()
    if graph is not None and ran is not None:
        there = partial(on_fake_cpu, job, host_apart=host_apart)
        gap = gap_parts(graph, ran, lambda event, wanted: holders_at(there(), ran, event, wanted))
    mine, its = (None if line is None else peak_of(line) for line in (graph, ran))
    return CallPeaks(job.stage, invocation, job.id, mine, its, gap, tuple(notes))


def graph_timeline(job: ExportJob, notes: dict[str, None], *, host_apart: bool = False) -> Timeline:
    """Return the memory of a job's graph over time; add the assumptions to ``notes``.

    Raises:
        Incomplete: as :func:`~costproof.tracers.peaks.program.exported_memory`.
    """
    with HostTensors() if host_apart else nullcontext():
        found = exported_memory(on_fake_cpu(job, host_apart=host_apart))
    notes.update(dict.fromkeys(found.notes))
    return timeline(found.program)


def eager_timeline(job: ExportJob, notes: dict[str, None], *, host_apart: bool = False) -> Timeline:
    """Return the memory of a job's eager module over time; add the assumptions to ``notes``.

    Raises:
        Incomplete: as :func:`eager_run`.
    """
    found, assumed = eager_run(on_fake_cpu(job, host_apart=host_apart))
    notes.update(dict.fromkeys(assumed))
    return found


def _peak_or_note(make: Callable[[], T], which: str, notes: dict[str, None]) -> T | None:
    try:
        return make()
    except Incomplete as error:
        notes[f"{which} peak not known: {error.line}"] = None
        return None


_DEEPEST: Final = 4
"""Depth to which lists, dictionaries and objects in variables are searched for tensors."""
_ONE_OPERATOR: Final = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
_AS_MODULES: Final = (
    "torch.nn's layers of attention are run as the modules that they are made of, not as the one operator that may "
    "stand for them in evaluation on a CPU, which holds less"
)
_TORCH: Final = str(Path(torch.__file__).parent)
_OURS: Final = str(Path(__file__).parents[2])
_OF_ANY_MODULE: Final = frozenset(vars(torch.nn.Module()))

Holders = Mapping[int, tuple[str, ...]]
"""Names of the variables that refer to a storage, outermost first, by number of the storage."""


def eager_run(
    job: FakeCpuJob, watch: Callable[[Storages, int], None] | None = None
) -> tuple[Timeline, tuple[str, ...]]:
    """Run a module eagerly on fake CPU tensors; return its memory over time, and the assumptions as notes.

    Args:
        watch: function that is called after each allocation, while the module runs.

    Raises:
        Incomplete: the module needs values, or the memory of a result is unknown.
    """
    module, name = job.job.module, module_namer(job.job)
    paths = {id(m): name(path) for path, m in module.named_modules()}
    stack: list[str] = []

    def enter(called: Any, *_: Any) -> None:
        here = paths.get(id(called))
        stack.append(here if here is not None else stack[-1] if stack else "")

    def leave(*_: Any) -> None:
        stack.pop()

    seen = Storages(
        lambda: stack[-1] if stack else "", lambda event: watch(seen, event) if watch else None, job.counted
    )
    try:
        created = HostTensors() if job.host_apart else nullcontext()
        hooks = hooked(module.modules(), enter, leave)
        with inference_context(module) as assumed, watched(), hooks, created, job.mode, seen:
            seen.apart((*module.parameters(), *module.buffers()))
            map_arguments(job.job, lambda path, tensor: seen.given(".".join(map(str, path)), tensor))
            result = module(**job.job.args)
            found = seen.timeline()
            del result
    except CostproofError:
        raise
    except Exception as error:  # code of other packages may raise anything
        where = f"{job.job.stage}, {job.job.id}"
        raise Incomplete(
            "the module does not run on tensors without values", where=where, got=first_line(error)
        ) from error
    made_of = any(isinstance(m, _ONE_OPERATOR) for m in module.modules())
    return found, (*assumed, *([_AS_MODULES] if made_of else []))


def holders_at(job: FakeCpuJob, expected: Timeline, event: int, wanted: Collection[int]) -> Holders:
    """Run a module again; return the variables that refer to each storage after an event, empty if the run differs."""
    found: dict[int, tuple[str, ...]] = {}

    def watch(seen: Storages, at: int) -> None:
        same = at == event and tuple(seen.events) == expected.events[: event + 1]
        if same and tuple(seen.tensors) == expected.tensors[: len(seen.tensors)]:
            found.update(_holders(seen, wanted))

    eager_run(job, watch)
    return found


def _holders(seen: Storages, wanted: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return the names of active functions' variables that refer to each storage, outermost first.

    Variables of torch's functions are returned only if there are no others, and those of costproof never.
    """
    ours: dict[int, list[str]] = {}
    torchs: dict[int, list[str]] = {}
    frame: FrameType | None = sys._getframe(2)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    for frame in reversed(frames):
        if frame.f_code.co_filename.startswith(_OURS):
            continue
        into = torchs if frame.f_code.co_filename.startswith(_TORCH) else ours
        for name, value in _named(frame.f_locals):
            for number in _inside(seen, value, _DEEPEST) & set(wanted):
                into.setdefault(number, []).append(f"{_function(frame)}: {name}")
    return {n: tuple(dict.fromkeys(ours.get(n) or torchs.get(n) or ())) for n in wanted}


def _named(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of variables; for a module, yield its attributes other than weights and submodules."""
    for name, value in variables.items():
        if isinstance(value, torch.nn.Module):
            yield from ((f"{name}.{k}", v) for k, v in vars(value).items() if k not in _OF_ANY_MODULE)
        else:
            yield name, value


def _function(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name
    return name if owner is None else f"{type(owner).__name__}.{name}"


def _inside(seen: Storages, value: Any, depth: int) -> set[int]:
    """Return the numbers of the storages that a value refers to, directly or through containers."""
    if isinstance(value, torch.Tensor):
        number = seen.number(value)
        return set() if number is None else {number}
    if depth == 0 or isinstance(value, torch.nn.Module | Storages | type):
        return set()
    if isinstance(value, dict):
        parts: Any = list(value.values())
    elif isinstance(value, list | tuple | set):
        parts = list(value)
    elif type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        parts = list(vars(value).values())
    else:
        return set()
    return set().union(*(_inside(seen, part, depth - 1) for part in parts))
