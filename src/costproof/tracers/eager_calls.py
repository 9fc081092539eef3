"""Measure both clocks of an eager run: when the host enqueues each operator, and how long the device runs its kernels.

The profiler records every operator, every call of the CUDA runtime inside it, and every kernel, copy and fill, which
has the correlation id of the runtime call that enqueued it. The host time between two boundaries is divided into calls:

* A *call* is the innermost operator that enqueues work or waits for the device, with everything inside it that does
  neither. An operator without any such work (a view, or everything on a processor) is a call too, at the outermost
  level. An operator that only contains calls, such as ``aten::linear``, is none; its own time goes to the next of them.
* *Launch* is the time of the runtime calls that enqueue, *dispatch* the rest of the call, and *Python* the time since
  the call before it. Time in which the host waits is in none of them: in a synchronising runtime call, or beyond the
  median of a launch that takes more than eight times as long, because the device's queue is full or a copy to the host
  blocks.

The profiler itself takes a microsecond or two per event, and so do hooks. Therefore the host parts are scaled, stage by
stage, to the host time of runs without a profiler, taken at the same boundaries where the CUDA events are recorded,
less the waiting that the recurrence of the two clocks finds in it (:mod:`costproof.estimate.clocks`). A stage in which
the queue of the device is full is scaled by the common ratio of all other stages and of a chain of small operators, for
the recurrence knows no full queue. The scaling is exact: parts are integers, and the largest remainders are rounded up.

The device time of a call is the time of its kernels and, for each, the gap to the next in a full queue, which is
measured with a chain of small kernels: about 0.8 microseconds on an H100, of which the profiler shows nothing.

A module is known from a run of its own, in which every module has a hook; its calls are those of the other runs, in the
same order. If they are not, because a branch depends on more than the inputs, that run is used alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from statistics import median_low
from typing import Any, Final

import torch
from torch import nn

from costproof.ledger.errors import Incomplete
from costproof.ledger.profile import EnqueuedCall, Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.specs import Run
from costproof.tracers.timing import (
    HostTimes,
    Place,
    Stage,
    asleep,
    first_launch,
    stage_boundaries,
    time_events,
    time_stage_clocks,
    timed_device,
    unlogged_profiler,
    watch_modules,
)

MARK: Final = "costproof boundary"
"""Name of the profiler's event where execution passes a boundary."""
_RUNTIME: Final = re.compile(r"cu(da)?[A-Z]\w*|INVALID")
"""Names of calls of the CUDA runtime and driver; the profiler has no name for some."""
_WAITING: Final = re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize\w*")
_OVERHEAD: Final = frozenset({
    "Activity Buffer Request", "Buffer Flush", "Command Buffer Full", "Instrumentation", "Resource", "Unrecognized",
    "CUPTI overhead", "Lazy Function Loading", "Runtime Triggered Module Loading",
})  # fmt: skip
"""Names of the profiler's own work on the host, which is not host time of the run."""
_FROM_HOST: Final = "Memcpy HtoD"
"""Start of the name of a copy that takes the host as long as the copied bytes need."""
_TO_HOST: Final = "Memcpy DtoH"
"""Start of the name of a copy to the host."""
_BLOCKED: Final = 8
"""A launch that takes this many times the median is blocked."""
_PASSES: Final = {"cuda": 3, "cpu": 1}
"""Profiled runs with hooks at stage boundaries only; the median of each part is used."""
_ROUNDS: Final = 8
"""Rounds in which host times and the waiting that follows from them are made to agree."""
_SPACED: Final = 20
"""Launches on an idle device."""
_CHAIN: Final = 200
"""Operators of a chain, fewer than the queue of a device holds."""

StagePiece = tuple[Stage, tuple[EnqueuedCall, ...]]
"""A stage and its calls until the next stage boundary."""
EagerForward = tuple[StagePiece, ...]
"""The calls of a forward in their order, cut at stage boundaries; see :data:`costproof.estimate.clocks.Forward`."""


@dataclass(slots=True)
class _Span:
    """An event on the host with the events inside it, in nanoseconds."""

    name: str
    start: int
    end: int
    id: int
    inside: list[_Span] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    """Device times of the work that it enqueues."""
    copies: bool = False
    """Whether it copies from the host."""
    fetches: bool = False
    """Whether it copies to the host, which may wait for the device."""
    works: bool = False
    """Whether it or a span inside it enqueues work or waits."""

    @property
    def spent(self) -> int:
        return self.end - self.start

    @property
    def runtime(self) -> bool:
        return _RUNTIME.fullmatch(self.name) is not None

    @property
    def overhead(self) -> bool:
        return self.name in _OVERHEAD

    @property
    def waits(self) -> bool:
        return _WAITING.fullmatch(self.name) is not None


@dataclass(slots=True)
class ProfiledPiece:
    """The calls between two boundaries of a profiled run."""

    place: Place
    calls: list[EnqueuedCall]
    blocked: bool = False
    """Whether a launch takes so long that the queue of the device must be full."""

    @property
    def names(self) -> list[tuple[str, int, bool]]:
        """Return what the same call has in another run: operator, launches, and whether it synchronises."""
        return [(c.operator, c.launches, c.synchronises) for c in self.calls]


def measure_calls(runs: Sequence[Run], host: HostTimes, progress: Progress = silent) -> dict[str, EagerForward]:
    """Profile each forward and return its calls on both clocks, by run; none if the profiler sees no kernels of a GPU.

    Args:
        runs: the forwards.
        host: (run, stage) -> host time in runs without a profiler, see :func:`.timing.time_stage_clocks`.

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
    """Run a forward under the profiler, and return its calls between the boundaries of these modules."""
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


class Marks:
    """Boundaries of a profiled run, each with an event of the profiler."""

    def __init__(self) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self.places: list[Place] = []
        self._mark: Any = _RecordFunctionFast(MARK)

    def passed(self, stage: Stage, path: str) -> None:
        """Begin a piece of the run."""
        self.places.append((stage, path))
        with self._mark:
            pass


def raw_events(profiler: Any) -> Sequence[Any]:
    """Return the profiler's events with times in whole nanoseconds, before torch makes a tree of them."""
    results = profiler.profiler.kineto_results
    return () if results is None else list(results.events())


def read_calls(events: Iterable[Any], places: Sequence[Place]) -> list[ProfiledPiece]:
    """Divide the events of a profiled forward into calls.

    Args:
        events: events of torch's profiler, as ``kineto_results.events()`` has them.
        places: what begins at each event named :data:`MARK`, in order; the last one ends the forward.

    Raises:
        Incomplete: the profiler lost a mark.
    """
    host, device = [], []
    for event in events:
        if event.device_type().name != "CPU":
            device.append(event)
        elif not event.is_async():
            host.append(event)
    marks = sorted((e.start_ns(), e.end_ns()) for e in host if e.name() == MARK)
    if len(marks) != len(places):
        raise Incomplete(
            "the profiler lost events of the run",
            where="measure",
            expected=f"{len(places)} boundaries",
            got=f"{len(marks)}",
            fix="measure fewer layers with --layers N",
        )
    top = _tree(host, device)
    typical = _typical_launch(top)
    pieces = []
    at = 0
    for place, ((_, begin), (end, _)) in zip(places[:-1], pairwise(marks), strict=True):
        while at < len(top) and top[at].start < begin:
            at += 1
        first = at
        while at < len(top) and top[at].start < end:
            at += 1
        pieces.append(_CallReader(place, begin, typical).read(top[first:at], end))
    return pieces


def _tree(host: Iterable[Any], device: Iterable[Any]) -> list[_Span]:
    """Return the outermost spans on the host in order, with spans and kernels inside them."""
    spans = sorted(
        (
            _Span(e.name(), e.start_ns(), e.end_ns(), e.correlation_id())
            for e in host
            if e.name() != MARK and not e.is_user_annotation()
        ),
        key=lambda s: (s.start, -s.end),
    )
    launching = {s.id: s for s in spans if s.runtime}
    operators = {s.id: s for s in spans if not s.runtime and not s.overhead}
    for event in device:
        if event.is_user_annotation():
            continue  # a range of the host that kineto repeats on the device
        owner = launching.get(event.correlation_id()) or operators.get(event.linked_correlation_id())
        if owner is not None:
            owner.kernels.append(event.end_ns() - event.start_ns())
            owner.copies |= event.name().startswith(_FROM_HOST)
            owner.fetches |= event.name().startswith(_TO_HOST)
    top: list[_Span] = []
    around: list[_Span] = []
    for span in spans:
        while around and around[-1].end < span.end:
            around.pop()
        (around[-1].inside if around else top).append(span)
        around.append(span)
        if span.kernels or span.waits:
            for each in around:
                each.works = True
    return top


def _typical_launch(top: Iterable[_Span]) -> int:
    """Return the median time of the runtime calls that enqueue one kernel or copy; 0 without any."""
    spent = [s.spent for s in _every(top) if s.runtime and len(s.kernels) == 1]
    return median_low(spent) if spent else 0


def _every(spans: Iterable[_Span]) -> Iterator[_Span]:
    for span in spans:
        yield span
        yield from _every(span.inside)


class _CallReader:
    """Reads the calls of a piece along its host time.

    Args:
        place: stage and module of the piece.
        begin: nanoseconds at which it begins.
        typical: nanoseconds of a launch that is not blocked.
    """

    def __init__(self, place: Place, begin: int, typical: int) -> None:
        self.piece = ProfiledPiece(place, [])
        self._at = begin
        self._typical = typical
        self._python = self._dispatch = 0
        """Host time since the last call, which belongs to the next."""

    def read(self, spans: Iterable[_Span], end: int) -> ProfiledPiece:
        """Return the piece with the calls of these outermost spans; it ends at ``end``."""
        for span in spans:
            self._python += max(0, span.start - self._at)
            self._at = max(self._at, span.start)
            self._visit(span)
        self._python += max(0, end - self._at)
        calls = self.piece.calls
        if self._dispatch and calls:
            calls[-1] = replace(calls[-1], dispatch=calls[-1].dispatch + self._dispatch)
            self._dispatch = 0
        self._add("", _Work())
        return self.piece

    def _visit(self, span: _Span) -> None:
        if span.overhead:
            self._at = max(self._at, span.end)
            return
        if span.runtime:  # enqueued by Python itself, as Triton does, or a model that waits for the device
            work = _Work()
            self._enqueue(span, work)
            self._add(span.name, work)
            return
        if not span.works:
            self._skip(span)
            self._advance(span.end)
            self._add(span.name.replace("::", "."), _Work())
            return
        work = _Work()
        if span.kernels:  # their runtime call is not among the events
            work.launches, work.device = len(span.kernels), sum(span.kernels)
        for part in span.inside:
            self._advance(part.start)
            if part.runtime:
                self._enqueue(part, work)
            elif part.overhead:
                self._at = max(self._at, part.end)
            elif part.works:
                if work.any:
                    self._add(span.name.replace("::", "."), work)
                    work = _Work()
                self._visit(part)
            else:
                self._skip(part)
                self._advance(part.end)
        self._advance(span.end)
        if work.any:
            self._add(span.name.replace("::", "."), work)

    def _skip(self, span: _Span) -> None:
        """Leave out the profiler's own work inside a span."""
        for part in _every(span.inside):
            if part.overhead:
                self._advance(part.start)
                self._at = max(self._at, part.end)

    def _advance(self, end: int) -> None:
        """Count host time until ``end`` as dispatch."""
        self._dispatch += max(0, end - self._at)
        self._at = max(self._at, end)

    def _enqueue(self, part: _Span, work: _Work) -> None:
        """Add a call of the runtime to the work of a call."""
        if part.waits:
            work.synchronises = True
        elif part.kernels:
            spent, usual = part.spent, self._typical * len(part.kernels)
            if spent > usual * _BLOCKED > 0 and not part.copies:
                spent = usual
                self.piece.blocked |= not part.fetches
            work.launch += spent
            work.launches += len(part.kernels)
            work.device += sum(part.kernels)
        else:
            self._dispatch += part.spent
        self._at = max(self._at, part.end)

    def _add(self, operator: str, work: _Work) -> None:
        self.piece.calls.append(
            EnqueuedCall(
                operator, self.piece.place[1], self._python, self._dispatch, work.launch, work.launches, work.device,
                work.synchronises,
            )
        )  # fmt: skip
        self._python = self._dispatch = 0


@dataclass(slots=True)
class _Work:
    """The work that one call enqueues."""

    launch: int = 0
    launches: int = 0
    device: int = 0
    synchronises: bool = False

    @property
    def any(self) -> bool:
        return self.launches > 0 or self.synchronises


@dataclass(frozen=True, slots=True)
class ProfiledWork:
    """The work that a piece of a profiled run enqueues, in nanoseconds."""

    host: int
    """Without waiting."""
    launch: int
    launches: int
    waits: bool
    """Whether the host waits for the device."""


def work_of(piece: ProfiledPiece) -> ProfiledWork:
    """Return the sums of a piece."""
    launch, launches = sum(c.launch for c in piece.calls), sum(c.launches for c in piece.calls)
    return ProfiledWork(_host(piece.calls), launch, launches, any(c.synchronises for c in piece.calls))


def _joined(pieces: Iterable[ProfiledPiece]) -> list[ProfiledPiece]:
    """Join pieces of one stage that follow each other; Python at the end of one belongs to the next call."""
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
    """Return the medians of runs with hooks at stage boundaries, with the modules of the run with hooks everywhere."""
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


def _host(calls: Iterable[EnqueuedCall]) -> int:
    return sum(call.python + call.dispatch + call.launch for call in calls)


@dataclass(frozen=True, slots=True)
class _ProfiledStage:
    """The host time of a stage under the profiler."""

    spent: int
    blocked: bool


def _stages(pieces: Iterable[ProfiledPiece]) -> dict[Stage, _ProfiledStage]:
    spent, blocked = Counter[Stage](), dict[Stage, bool]()
    for piece in pieces:
        stage = piece.place[0]
        spent[stage] += _host(piece.calls)
        blocked[stage] = blocked.get(stage, False) or piece.blocked
    return {stage: _ProfiledStage(spent[stage], blocked[stage]) for stage in blocked}


def _common_ratio(found: Mapping[str, Iterable[ProfiledPiece]], host: HostTimes, device: str) -> Fraction:
    """Return host time without the profiler over that with it, in stages that do not wait.

    If the queue is full in a stage, or the host waits, a chain of operators that does not is measured in addition.
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
    """Return the host time of a chain of small operators without and with the profiler."""
    chain = Run("chain", _Chain().to(device), {}, lambda path, call: ("chain", ""))
    _, host = time_stage_clocks([chain], 5)
    profile_calls(chain, [""])
    return host["chain", ("chain", "")].median, sum(_host(piece.calls) for piece in profile_calls(chain, [""]))


class _Chain(nn.Module):
    """A chain of operators on one number."""

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
    launched = {e.correlation_id(): e.end_ns() for e in events if _RUNTIME.fullmatch(e.name())}
    kernels = sorted((e for e in events if e.device_type().name != "CPU"), key=lambda e: e.start_ns())
    late = [e.start_ns() - launched[e.correlation_id()] for e in kernels if e.correlation_id() in launched]
    return max(0, median_low(late[1:])) if late[1:] else None  # in the first launch the profiler makes its buffers


def queued_kernel(number: torch.Tensor) -> int:
    """Return the nanoseconds of one small kernel among many in the queue of the device."""

    def queue(kernels: int) -> int:
        def enqueue(nothing: None) -> None:
            for _ in range(kernels):
                number.add_(1)

        return time_events(enqueue, lambda: None, 1, 5, before=asleep).median

    return (queue(_CHAIN) - queue(1)) // (_CHAIN - 1)


def kernel_gap() -> int:
    """Return the nanoseconds between two kernels that follow each other in the queue of the device."""
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
    """Return the calls with their host parts scaled to the host time without a profiler, stage by stage.

    Args:
        run: the run.
        pieces: its calls.
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
    """Return the nanoseconds in which the host waits for the device in each stage, by the recurrence."""
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
    """Return the calls with host parts scaled to a total for each stage, and a gap after each kernel."""
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
                )
                for call in piece.calls
                for to in [exact[piece.place[0]]]
            ),
        )
        for piece in pieces
    )


def scale_to(parts: Sequence[int], total: int) -> list[int]:
    """Scale integers to integers of a given sum; those with the largest remainders are rounded up."""
    whole = sum(parts)
    if not whole:
        return list(parts)
    scaled = [part * total // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(parts[i] * total % whole), i))
    for i in by_remainder[: total - sum(scaled)]:
        scaled[i] += 1
    return scaled
