"""Measure the time of each stage and module of a forward, and profile it with ``torch.profiler``.

A stamp is taken wherever execution passes from one module to another: of a monotonic clock on the CPU, and as a CUDA
event on a GPU, so that it measures the device. For stages only modules at a stage boundary have a hook. For modules all
have one, in separate runs, since hooks take time. The profiler gets a named range around every module call, so that
each operator is found inside the module that ran it, under its path in the callgraph.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from unittest import mock

from costproof.ledger.aside import scratch
from costproof.ledger.profile import Measured, ModuleTime, OperatorTime, StageTime, Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.specs import Run
from costproof.patches.modules import forward_redirected, hooked
from costproof.tracers.hooks import ROOT

if TYPE_CHECKING:
    from torch import nn

Stage = tuple[str, str]
"""A stage and its invocation: ``(stage, invocation)``."""
StageModule = tuple[Stage, str]
"""A stage, and the path of the innermost watched module."""
HostTimes = Mapping[tuple[str, Stage], Timing]
"""Host nanoseconds between stage boundaries, without a profiler, by (run, stage)."""
NOWHERE: Final[Stage] = ("", "")
T = TypeVar("T")
_ASLEEP: Final = 20_000_000
"""Cycles of a GPU's sleep, about ten milliseconds: enough to enqueue a few hundred operators, or a graph."""
_LONGER: Final = (1, 4, 16)
"""Factors by which the sleep is lengthened in turn, until all work is enqueued before the device wakes."""
_PRODUCT: Final = 4096
"""Size of square matrices whose products occupy a device without a sleep kernel."""
WARM_UP: Final = 1
"""Number of runs before the timed runs."""


def clock_of(device: str) -> tuple[str, int]:
    """Return the name of the clock that times a run on ``cpu`` or ``cuda``, and the number of threads."""
    import torch

    return "CUDA events" if device == "cuda" else "perf_counter", torch.get_num_threads()


def timed_device(model: nn.Module) -> Literal["cpu", "cuda"]:
    """Return the kind of device, ``cpu`` or ``cuda``, of a model with values."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return "cuda" if first is not None and first.device.type == "cuda" else "cpu"


def time_stages(runs: Sequence[Run], count: int, progress: Progress = silent) -> tuple[StageTime, ...]:
    """Return the times of each stage of the forwards in ``count`` runs after :data:`WARM_UP`."""
    return time_stage_clocks(runs, count, progress)[0]


def time_stage_clocks(
    runs: Sequence[Run], count: int, progress: Progress = silent
) -> tuple[tuple[StageTime, ...], HostTimes]:
    """Return the times of each stage by the device's clock, as :func:`time_stages`, and by the host's clock.

    On the CPU both are the same.
    """
    found: dict[tuple[str, Stage], list[int]] = {}
    host: dict[tuple[str, Stage], list[int]] = {}
    for i in range(WARM_UP + count):
        progress("time the stages", i, WARM_UP + count)
        for run in runs:
            for into, times in zip((found, host), _stage_times(run), strict=True):
                for stage, spent in times.items() if i >= WARM_UP else ():
                    into.setdefault((run.id, stage), []).append(spent)
    progress("time the stages", WARM_UP + count, WARM_UP + count)
    return (
        tuple(StageTime(run, *stage, Timing(tuple(each))) for (run, stage), each in found.items()),
        {place: Timing(tuple(each)) for place, each in host.items()},
    )


def time_modules(
    runs: Sequence[Run], count: int, progress: Progress = silent
) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """Return the nanoseconds of each module without submodules in each of ``count`` runs, by (run, stage, module)."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for i in range(WARM_UP + count):
        progress("time the modules", i, WARM_UP + count)
        for run in runs:
            spent, _ = _time_modules(run, [path for path, _ in run.model.named_modules()])
            for ((stage, _), path), nanoseconds in spent.items() if i >= WARM_UP else ():
                # A module that does not run each time, such as an expert, has a time of 0 then.
                found.setdefault((run.id, stage, path), [0] * count)[i - WARM_UP] += nanoseconds
    progress("time the modules", WARM_UP + count, WARM_UP + count)
    return {place: tuple(times) for place, times in found.items()}


def stage_times(run: Run) -> dict[Stage, int]:
    """Return the nanoseconds of each stage of one forward; they sum to the whole forward."""
    return _stage_times(run)[0]


def _stage_times(run: Run) -> tuple[dict[Stage, int], dict[Stage, int]]:
    """Return the nanoseconds of each stage of one forward, by the clocks of device and host."""
    found: tuple[Counter[Stage], Counter[Stage]] = Counter(), Counter()
    for into, times in zip(found, _time_modules(run, stage_boundaries(run)), strict=True):
        for (stage, _), nanoseconds in times.items():
            into[stage] += nanoseconds
    return found


def _time_modules(run: Run, paths: Iterable[str]) -> tuple[Counter[StageModule], Counter[StageModule]]:
    """Time one forward between module boundaries; return nanoseconds by stage and innermost module, on two clocks.

    The first result is by the clock of the device, the second by that of the host; on the CPU they are the same.
    """
    import torch

    cuda = timed_device(run.model) == "cuda"
    places: list[StageModule] = []
    ticks: list[int] = []
    events: list[Any] = []
    watched, spare = list(paths), list[Any]()

    def stamp(stage: Stage, path: str) -> None:
        places.append((stage, path))
        if cuda:
            events.append(spare.pop() if spare else new_events(1)[0])
            events[-1].record()
        ticks.append(time.perf_counter_ns())

    kwargs = run.inputs()
    if cuda:
        spare += new_events(2 * len(watched) + 2)
        torch.cuda.synchronize()  # inputs are copied by the device
    with watch_modules(run, watched, stamp), torch.no_grad(), run.around():
        run.model(**kwargs)
    if cuda:
        torch.cuda.synchronize()
    host = [end - begin for begin, end in pairwise(ticks)]
    device = [round(begin.elapsed_time(end) * 1e6) for begin, end in pairwise(events)] if cuda else host
    found: tuple[Counter[StageModule], Counter[StageModule]] = Counter(), Counter()
    for into, spans in zip(found, (device, host), strict=True):
        for place, span in zip(places, spans, strict=False):  # the last stamp ends the forward
            into[place] += span
    return found


def new_events(count: int) -> list[Any]:
    """Return CUDA events that were recorded once, since a first record takes the host ten microseconds longer."""
    import torch

    new_event: Any = torch.cuda.Event
    made = [new_event(enable_timing=True) for _ in range(count)]
    for event in made:
        event.record()
    return made


def time_events(
    work: Callable[[T], object], prepare: Callable[[], T], warm: int, count: int, *, queued: bool = False
) -> Timing:
    """Return the times of ``work`` on the device, measured between two CUDA events.

    Args:
        work: function to be timed, called with the result of ``prepare``.
        prepare: function that makes inputs, outside of the measured time.
        warm: number of runs before the timed ones.
        count: number of timed runs.
        queued: whether the device sleeps until the work and both events are in its queue, so that the times are those
            of the device only. By default the device is idle before, and waits for the host to enqueue the work.
    """
    import torch

    begin, end = new_events(2)
    found = []
    for i in range(warm + count):
        for factor in _LONGER if queued else (0,):
            given = prepare()
            torch.cuda.synchronize()
            if factor:
                sleep_device(factor * _ASLEEP)
            begin.record()
            work(given)
            end.record()
            if not begin.query():  # the device still sleeps
                break
        torch.cuda.synchronize()
        if i >= warm:
            found.append(round(begin.elapsed_time(end) * 1e6))
    return Timing(tuple(found))


def sleep_device(cycles: int) -> None:
    """Enqueue a kernel that occupies the device for about this many cycles."""
    import torch

    sleep: Any = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(cycles)
        return
    matrix = torch.ones(_PRODUCT, _PRODUCT, device="cuda")
    for _ in range(1 + cycles // (_ASLEEP // 8)):  # each takes a few milliseconds
        torch.mm(matrix, matrix)


@contextmanager
def watch_modules(run: Run, paths: Iterable[str], passed: Callable[[Stage, str], None]) -> Iterator[None]:
    """Call ``passed(stage, path)`` for the innermost running module whenever a watched module starts or ends."""
    stack: list[tuple[Stage, str]] = []
    calls: Counter[nn.Module] = Counter()
    modules = {run.model.get_submodule(path): path for path in paths}

    def enter(module: nn.Module, args: Any) -> None:
        calls[module] += 1
        stack.append((run.locate(modules[module], calls[module]), modules[module]))
        passed(*stack[-1])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()
        passed(*(stack[-1] if stack else (NOWHERE, "")))

    with hooked(modules, enter, leave):
        yield


def stage_boundaries(run: Run) -> list[str]:
    """Return the modules, including the root, that belong to another stage than their parent."""
    found = []
    for path, _ in run.model.named_modules():
        parent = path.rpartition(".")[0]
        if not path or run.locate(path, 1)[0] != run.locate(parent, 1)[0]:
            found.append(path)
    return found


PREFIX: Final = "module "
_OF_THE_MACHINE: Final = ("host_name", "traceName", "trace_id")
"""Keys of a Chrome trace that describe the machine and the file to which it was first written."""


@dataclass(slots=True)
class _ProfileSums:
    """Sums for a module, or for an operator in a module, over one profiled run; times in nanoseconds."""

    calls: int = 0
    cpu: int = 0
    own: int = 0
    device: int = 0
    memory: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()


_ProfiledRun = defaultdict[tuple[str, ...], _ProfileSums]
"""Sums of one profiled run over all forwards, by (module,) and by (module, operator)."""


def profile_runs(runs: Sequence[Run], count: int, progress: Progress = silent) -> tuple[Measured, str]:
    """Measure each forward ``count`` times after a warm-up run, first without and then with the profiler.

    Returns:
        The times, and the Chrome trace of the last profiled run as JSON text.
    """
    import torch

    kind = timed_device(runs[0].model)
    cuda, device = kind == "cuda", next(runs[0].model.parameters()).device
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    stages = time_stages(runs, count, progress)
    peak = torch.cuda.max_memory_allocated(device) if cuda else None
    passes: list[_ProfiledRun] = []
    chrome = ""
    for i in range(WARM_UP + count):
        progress("profile", i, WARM_UP + count)
        found, chrome = _profile(runs, cuda=cuda, trace=i == WARM_UP + count - 1)
        if i >= WARM_UP:
            passes.append(found)
    modules, operators = _timings(passes, cuda=cuda)
    clock, threads = clock_of(kind)
    measured = Measured(
        device=torch.cuda.get_device_name(device) if cuda else "cpu",
        clock=clock,
        threads=threads,
        warm_up=WARM_UP,
        stages=stages,
        modules=modules,
        operators=operators,
        peak_bytes=peak,
    )
    return measured, chrome


@contextmanager
def module_ranges(model: nn.Module) -> Iterator[None]:
    """Open a named profiler range around every module call while the block runs."""
    from torch.autograd.profiler import record_function

    paths = {id(m): p or ROOT for p, m in model.named_modules()}
    open_ranges: list[Any] = []

    def enter(module: nn.Module, args: Any) -> None:
        span: Any = record_function(PREFIX + paths[id(module)])
        span.__enter__()
        open_ranges.append(span)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    try:
        with hooked(model.modules(), enter, leave), forward_redirected(model):
            yield
    finally:
        while open_ranges:
            open_ranges.pop().__exit__(None, None, None)


@contextmanager
def unlogged_profiler() -> Iterator[None]:
    """Suppress the profiler's log messages and warning while the block runs."""
    with (
        mock.patch.dict(os.environ, {"KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "6")}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        yield


def first_launch() -> None:
    """Enqueue one kernel and wait for it, since the profiler allocates its buffers at the first launch."""
    import torch

    torch.zeros(1, device="cuda").add_(1)
    torch.cuda.synchronize()


def _profile(runs: Sequence[Run], *, cuda: bool, trace: bool) -> tuple[_ProfiledRun, str]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    inputs = [run.inputs() for run in runs]  # outside the measured time
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with (
        unlogged_profiler(),
        module_ranges(runs[0].model),
        torch.no_grad(),
        profile(activities=activities, record_shapes=True, profile_memory=True) as profiler,
    ):
        if cuda:
            first_launch()
        for run, kwargs in zip(runs, inputs, strict=True):
            with run.around():
                run.model(**kwargs)
        if cuda:
            torch.cuda.synchronize()
    found = _read(profiler.events() or ())
    if not trace:
        return found, ""
    with scratch() as folder:
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        told = json.loads(path.read_text(encoding="utf-8"))
    return found, json.dumps({key: value for key, value in told.items() if key not in _OF_THE_MACHINE})


def _read(events: Sequence[Any]) -> _ProfiledRun:
    """Return the self times of operators by innermost module range, and the times of modules."""
    found: _ProfiledRun = defaultdict(_ProfileSums)
    for event in events:
        if event.device_type.name != "CPU":
            continue  # kernels are counted with the operators that launched them
        around = _around(event)
        if event.name.startswith(PREFIX):
            module, spent = found[event.name.removeprefix(PREFIX),], _ns(event.cpu_time_total)
            module.calls += 1
            module.own += spent
            if around is not None:
                found[around,].own -= spent
            if all(p.name != event.name for p in parents(event)):
                module.cpu += spent
                module.device += _ns(event.device_time_total)
        elif around is not None:
            operator = found[around, event.name]
            operator.calls += 1
            operator.own += _ns(event.self_cpu_time_total)
            operator.device += _ns(event.self_device_time_total)
            operator.memory += event.self_device_memory_usage or event.self_cpu_memory_usage
            operator.shapes = operator.shapes or tuple(
                tuple(int(d) for d in s) for s in event.input_shapes or () if s and all(isinstance(d, int) for d in s)
            )
    return found


def _around(event: Any) -> str | None:
    """Return the module of the innermost profiler range around an event; ``None`` outside of ranges."""
    return next((p.name.removeprefix(PREFIX) for p in parents(event) if p.name.startswith(PREFIX)), None)


def parents(event: Any) -> Iterator[Any]:
    """Yield the events that enclose an event, innermost first."""
    while (event := event.cpu_parent) is not None:
        yield event


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _timings(passes: Sequence[_ProfiledRun], *, cuda: bool) -> tuple[tuple[ModuleTime, ...], tuple[OperatorTime, ...]]:
    """Return the times of modules, and of operators in modules, over all profiled runs."""

    def timing(key: tuple[str, ...], what: str) -> Timing:
        return Timing(tuple(getattr(p[key], what) for p in passes))

    def device(key: tuple[str, ...]) -> Timing | None:
        return timing(key, "device") if cuda else None

    last = sorted(passes[-1].items())
    modules = (
        ModuleTime(*key, seen.calls, timing(key, "cpu"), timing(key, "own"), device(key))
        for key, seen in last
        if len(key) == 1
    )
    operators = (
        OperatorTime(*key, seen.calls, timing(key, "own"), device(key), seen.memory, seen.shapes)
        for key, seen in last
        if len(key) == 2
    )
    return tuple(modules), tuple(operators)
