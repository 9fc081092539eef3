"""Measure an eager run on two clocks: when the host enqueues each operator, and how long its kernels take.

The calls are those of the profiler's events (:mod:`costproof.tracers.profiled_calls`).

The profiler itself takes a microsecond or two per event, and so do hooks. Therefore the host parts are scaled, stage by
stage, to the host time of runs without a profiler, taken at the same boundaries where the CUDA events are recorded,
less the waiting that the recurrence of the two clocks finds in it (:mod:`costproof.estimate.clocks`). A stage in which
the queue of the device is full is scaled by the common ratio of all other stages and of a chain of small operators, for
the recurrence knows no full queue. The scaling is exact: parts are integers, and the largest remainders are rounded up.

The device time of a call is the time of its kernels and, for each, the gap to the next in a full queue, which is
measured with a chain of small kernels: about 0.8 microseconds on an H100, of which the profiler shows nothing. In a
CUDA graph kernels follow each other with another gap, so that the time of the kernels is known by itself as well.

A module is known from a run of its own, in which every module has a hook; its calls are those of the other runs, in the
same order. If they are not, because a branch depends on more than the inputs, that run is used alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median_low
from typing import Final

import torch
from torch import nn

from costproof.ledger.profile import EnqueuedCall, Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.specs import Run
from costproof.tracers.profiled_calls import RUNTIME, Marks, ProfiledPiece, raw_events, read_calls
from costproof.tracers.timing import (
    HostTimes,
    Stage,
    first_launch,
    stage_boundaries,
    time_events,
    time_stage_clocks,
    timed_device,
    unlogged_profiler,
    watch_modules,
)

_PASSES: Final = {"cuda": 3, "cpu": 1}
"""Number of profiled runs with hooks at stage boundaries only, by device; the median of each time is used."""
_ROUNDS: Final = 8
"""Number of iterations in which host times and the resulting waiting times are made consistent."""
_SPACED: Final = 20
"""Number of launches that are measured, each on an idle device."""
_CHAIN: Final = 200
"""Number of operators enqueued in a row, fewer than the device's queue has room for."""

StagePiece = tuple[Stage, tuple[EnqueuedCall, ...]]
"""A stage, with its calls up to the next stage boundary."""
EagerForward = tuple[StagePiece, ...]
"""The calls of a forward in order, split at stage boundaries; see :data:`costproof.estimate.clocks.Forward`."""


def measure_calls(runs: Sequence[Run], host: HostTimes, progress: Progress = silent) -> dict[str, EagerForward]:
    """Profile each forward; return its calls on the clocks of host and device, by run; empty without GPU kernels.

    Args:
        runs: the forwards.
        host: host time in runs without a profiler by (run, stage), see :func:`.timing.time_stage_clocks`.

    Raises:
        Incomplete: the profiler lost events.
    """
    device = timed_device(runs[0].model)
    passes = _PASSES[device]
    found: dict[str, list[ProfiledPiece]] = {}
    for i, run in enumerate(runs):
        progress("profile the calls", i * (passes + 1), len(runs) * (passes + 1))
        everywhere = profile_calls(run, [path for path, _ in run.model.named_modules()])
        whole = _joined(everywhere)
        at_stages = []
        for k in range(passes):
            progress("profile the calls", i * (passes + 1) + k + 1, len(runs) * (passes + 1))
            at_stages.append(profile_calls(run, stage_boundaries(run)))
        found[run.id] = _combine(whole, [_joined(pieces) for pieces in at_stages])
    progress("profile the calls", len(runs) * (passes + 1), len(runs) * (passes + 1))
    if device == "cuda" and not any(c.launches for pieces in found.values() for p in pieces for c in p.calls):
        return {}  # the driver may keep its counters from the profiler
    ratio = _common_ratio(found, host, device)
    gap = kernel_gap() if device == "cuda" else 0
    latency = launch_latency() or 0 if device == "cuda" else 0
    return {run: _scaled(run, pieces, host, ratio, gap, latency) for run, pieces in found.items()}


def profile_calls(run: Run, paths: Iterable[str]) -> list[ProfiledPiece]:
    """Run a forward under the profiler; return its calls, split at the boundaries of these modules."""
    from torch.profiler import ProfilerActivity, profile

    cuda = timed_device(run.model) == "cuda"
    marks = Marks()
    kwargs = run.inputs()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    if cuda:
        torch.cuda.synchronize()
    with (
        unlogged_profiler(),
        watch_modules(run, paths, marks.passed),
        torch.no_grad(),
        run.around(),
        profile(activities=activities) as profiler,
    ):
        if cuda:
            first_launch()
        run.model(**kwargs)
        if cuda:
            torch.cuda.synchronize()
    return read_calls(raw_events(profiler), marks.places)


def _joined(pieces: Iterable[ProfiledPiece]) -> list[ProfiledPiece]:
    """Join consecutive parts of one stage; Python time at the end of a part is added to the next call."""
    found: list[ProfiledPiece] = []
    for piece in pieces:
        calls = list(piece.calls)
        if found and found[-1].place[0] == piece.place[0]:
            into = found[-1]
            if into.calls and not into.calls[-1].operator and calls:
                tail = into.calls.pop()
                calls[0] = replace(
                    calls[0], python=calls[0].python + tail.python, dispatch=calls[0].dispatch + tail.dispatch
                )
            into.calls += calls
            into.blocked |= piece.blocked
        else:
            found.append(ProfiledPiece(piece.place, calls, piece.blocked))
    return found


def _combine(everywhere: list[ProfiledPiece], at_stages: Sequence[list[ProfiledPiece]]) -> list[ProfiledPiece]:
    """Return median call times of runs with hooks at stage boundaries only, with modules from a run with all hooks."""
    if any([(p.place[0], p.names) for p in one] != [(p.place[0], p.names) for p in everywhere] for one in at_stages):
        return everywhere
    return [
        ProfiledPiece(
            piece.place,
            [_median(call, same) for call, *same in zip(piece.calls, *(p.calls for p in others), strict=True)],
            all(p.blocked for p in others),
        )
        for piece, *others in zip(everywhere, *at_stages, strict=True)
    ]


def _median(call: EnqueuedCall, same: Sequence[EnqueuedCall]) -> EnqueuedCall:
    python, dispatch, launch, device = (
        Timing(times).median for times in zip(*((c.python, c.dispatch, c.launch, c.device) for c in same), strict=True)
    )
    return replace(call, python=python, dispatch=dispatch, launch=launch, device=device)


@dataclass(frozen=True, slots=True)
class _ProfiledStage:
    """Host time of a stage under the profiler, and whether the stage waits for the device."""

    spent: int
    blocked: bool


def _stages(pieces: Iterable[ProfiledPiece]) -> dict[Stage, _ProfiledStage]:
    spent, blocked = Counter[Stage](), dict[Stage, bool]()
    for piece in pieces:
        stage = piece.place[0]
        spent[stage] += piece.host
        blocked[stage] = blocked.get(stage, False) or piece.blocked
    return {stage: _ProfiledStage(spent[stage], blocked[stage]) for stage in blocked}


def _common_ratio(found: Mapping[str, Iterable[ProfiledPiece]], host: HostTimes, device: str) -> Fraction:
    """Return the ratio of host times without and with the profiler, from stages that do not wait for the device.

    If a stage fills the queue, or the host waits in it, a chain of operators that does neither is measured in addition.
    """
    waits = {
        (run, piece.place[0])
        for run, pieces in found.items()
        for piece in pieces
        if piece.blocked or any(call.synchronises for call in piece.calls)
    }
    plain, profiled = _chain(device) if waits else (0, 0)
    for run, pieces in found.items():
        for stage, profile in _stages(pieces).items():
            if (run, stage) not in waits and (run, stage) in host:
                plain += host[run, stage].median
                profiled += profile.spent
    return Fraction(plain, profiled) if profiled else Fraction(1)


def _chain(device: str) -> tuple[int, int]:
    """Return the host time, in nanoseconds, of a chain of small operators without and with the profiler."""
    chain = Run("chain", _Chain().to(device), {}, lambda path, call: ("chain", ""))
    _, host = time_stage_clocks([chain], 5)
    profile_calls(chain, [""])
    return host["chain", ("chain", "")].median, sum(piece.host for piece in profile_calls(chain, [""]))


class _Chain(nn.Module):
    """Module that runs a chain of small operators on a one-element tensor, to measure the cost of launches."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self) -> None:
        for _ in range(_CHAIN):
            self.number.add_(1)


def launch_latency() -> int | None:
    """Return the nanoseconds from the end of a launch to the start of its kernel on an idle device.

    ``None`` if the profiler sees no kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    number = torch.zeros(1, device="cuda")
    with unlogged_profiler(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(1 + _SPACED):
            number.add_(1)
            torch.cuda.synchronize()
    events = raw_events(profiler)
    launched = {e.correlation_id(): e.end_ns() for e in events if RUNTIME.fullmatch(e.name())}
    kernels = sorted((e for e in events if e.device_type().name != "CPU"), key=lambda e: e.start_ns())
    late = [e.start_ns() - launched[e.correlation_id()] for e in kernels if e.correlation_id() in launched]
    return max(0, median_low(late[1:])) if late[1:] else None  # in the first launch the profiler makes its buffers


def queued_kernel(number: torch.Tensor) -> int:
    """Return the nanoseconds that one small kernel takes in a full queue of the device."""

    def queue(kernels: int) -> int:
        def enqueue(nothing: None) -> None:
            for _ in range(kernels):
                number.add_(1)

        return time_events(enqueue, lambda: None, 1, 5, queued=True).median

    return (queue(_CHAIN) - queue(1)) // (_CHAIN - 1)


def kernel_gap() -> int:
    """Return the nanoseconds between two consecutive kernels in a full queue of the device."""
    from torch.profiler import ProfilerActivity, profile

    number = torch.zeros(1, device="cuda")
    with unlogged_profiler(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(_SPACED):
            number.add_(1)
        torch.cuda.synchronize()
    spent = [e.end_ns() - e.start_ns() for e in raw_events(profiler) if e.device_type().name != "CPU"]
    return max(0, queued_kernel(number) - median_low(spent)) if spent else 0


def _scaled(
    run: str, pieces: Sequence[ProfiledPiece], host: HostTimes, ratio: Fraction, gap: int, latency: int
) -> EagerForward:
    """Scale the host times of calls, stage by stage, to the host times without a profiler.

    Args:
        run: the run.
        pieces: calls of the run.
        host: host times without a profiler.
        ratio: host time without the profiler over that with it, of stages that do not wait.
        gap: nanoseconds from the end of a kernel to the start of the next.
        latency: nanoseconds from a launch to the start of its kernel on an idle device.
    """
    stages = _stages(pieces)
    timed = {stage: host[run, stage].median for stage in stages if (run, stage) in host}
    totals = {stage: round(ratio * profile.spent) for stage, profile in stages.items()}
    totals |= {stage: min(totals[stage], spent) for stage, spent in timed.items()}
    plain = {stage: spent for stage, spent in timed.items() if not stages[stage].blocked}
    found = _with_totals(pieces, totals, gap)
    for _ in range(_ROUNDS):
        waited = waiting_times(found, latency)
        totals |= {stage: max(0, spent - waited[stage]) for stage, spent in plain.items()}
        found = _with_totals(pieces, totals, gap)
    return found


def waiting_times(forward: EagerForward, latency: int) -> Counter[Stage]:
    """Return the nanoseconds that the host waits for the device in each stage, from the recurrence of both clocks."""
    enqueued = end = 0
    found = Counter[Stage]()
    for stage, calls in forward:
        for call in calls:
            enqueued += call.python + call.dispatch + call.launch
            if call.launches:
                end = max(enqueued + latency, end) + call.device
            if call.synchronises:
                found[stage] += max(0, end - enqueued)
                enqueued = max(enqueued, end)
    return found


def _with_totals(pieces: Sequence[ProfiledPiece], totals: Mapping[Stage, int], gap: int) -> EagerForward:
    """Return the calls of a forward with corrected host and device times.

    Args:
        pieces: the calls as the profiler, which slows the host down, recorded them.
        totals: host nanoseconds of each stage without the profiler, to which those of its calls are scaled.
        gap: nanoseconds that the device idles after each kernel; added to the device time of its call.
    """
    parts: dict[Stage, list[int]] = {stage: [] for stage in totals}
    for piece in pieces:
        for call in piece.calls:
            parts[piece.place[0]] += (call.python, call.dispatch, call.launch)
    exact = {stage: iter(scale_to(of, totals[stage])) for stage, of in parts.items()}
    return tuple(
        (
            piece.place[0],
            tuple(
                replace(
                    call,
                    python=next(to),
                    dispatch=next(to),
                    launch=next(to),
                    device=call.device + gap * call.launches,
                    kernels=call.device,
                )
                for call in piece.calls
                for to in [exact[piece.place[0]]]
            ),
        )
        for piece in pieces
    )


def scale_to(parts: Sequence[int], total: int) -> list[int]:
    """Scale integers to integers with a given sum; those with the largest remainders are rounded up."""
    whole = sum(parts)
    if not whole:
        return list(parts)
    scaled = [part * total // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(parts[i] * total % whole), i))
    for i in by_remainder[: total - sum(scaled)]:
        scaled[i] += 1
    return scaled
