"""Divide the events of a profiled forward into operator calls, with the host and device time of each call.

The profiler records every operator, every call of the CUDA runtime inside it, and every kernel, copy and fill, which
has the correlation id of the runtime call that enqueued it. The host time between two boundaries is divided into calls:

* A *call* is the innermost operator that enqueues work or waits for the device, with everything inside it that does
  neither. An operator without any such work (a view, or everything on a processor) is a call too, at the outermost
  level. An operator that only contains calls, such as ``aten::linear``, is not a call; its time counts to the next one.
* *Launch* is the time of the runtime calls that enqueue, *dispatch* the rest of the call, and *Python* the time since
  the call before it. These exclude the time in which the host waits: in a synchronising runtime call, or beyond the
  median of a launch that takes more than eight times as long, because the device's queue is full or a copy to the host
  blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median_low
from typing import Any, Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.profile import EnqueuedCall
from costproof.tracers.timing import Stage, StageModule

MARK: Final = "costproof boundary"
"""Name of the profiler event that marks a boundary in the run."""
RUNTIME: Final = re.compile(r"cu(da)?[A-Z]\w*|INVALID")
"""Pattern for the names of CUDA runtime and driver calls; the profiler names unknown ones INVALID."""
_WAITING: Final = re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize\w*")
_OVERHEAD: Final = frozenset({
    "Activity Buffer Request", "Buffer Flush", "Command Buffer Full", "Instrumentation", "Resource", "Unrecognized",
    "CUPTI overhead", "Lazy Function Loading", "Runtime Triggered Module Loading",
})  # fmt: skip
"""Names of the profiler's own work on the host, which does not count as host time of the run."""
_FROM_HOST: Final = "Memcpy HtoD"
"""Prefix of the names of copies from the host, which take the host as long as the copied bytes need."""
_TO_HOST: Final = "Memcpy DtoH"
"""Prefix of the names of copies to the host."""
_BLOCKED: Final = 8
"""Multiple of the median launch time from which on a launch counts as waiting for a full queue."""


@dataclass(slots=True)
class _Span:
    """An event on the host with its nested events; times in nanoseconds."""

    name: str
    start: int
    end: int
    id: int
    inside: list[_Span] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    """Device times of the kernels, copies and fills that the event enqueues."""
    copies: bool = False
    """Whether the event copies from the host."""
    fetches: bool = False
    """Whether the event copies to the host, which may wait for the device."""
    works: bool = False
    """Whether the event, or an event inside it, enqueues work or waits."""

    @property
    def spent(self) -> int:
        return self.end - self.start

    @property
    def runtime(self) -> bool:
        return RUNTIME.fullmatch(self.name) is not None

    @property
    def overhead(self) -> bool:
        return self.name in _OVERHEAD

    @property
    def waits(self) -> bool:
        return _WAITING.fullmatch(self.name) is not None


@dataclass(slots=True)
class ProfiledPiece:
    """Operator calls between two boundaries of a profiled run."""

    place: StageModule
    calls: list[EnqueuedCall]
    blocked: bool = False
    """Whether a launch takes so long that the device's queue must be full."""

    @property
    def names(self) -> list[tuple[str, int, bool]]:
        """Return the properties that identify the same calls in another run: operator, launches, synchronisation."""
        return [(c.operator, c.launches, c.synchronises) for c in self.calls]

    @property
    def host(self) -> int:
        """Return the host time of the calls in nanoseconds, without waiting."""
        return sum(call.python + call.dispatch + call.launch for call in self.calls)


class Marks:
    """Boundaries of a profiled run, each recorded as an event of the profiler."""

    def __init__(self) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self.places: list[StageModule] = []
        self._mark: Any = _RecordFunctionFast(MARK)

    def passed(self, stage: Stage, path: str) -> None:
        """Record a boundary: following events belong to this stage and module."""
        self.places.append((stage, path))
        with self._mark:
            pass


def raw_events(profiler: Any) -> Sequence[Any]:
    """Return the profiler's events with times in whole nanoseconds, before torch nests them."""
    results = profiler.profiler.kineto_results
    return () if results is None else list(results.events())


def read_calls(events: Iterable[Any], places: Sequence[StageModule]) -> list[ProfiledPiece]:
    """Divide the events of a profiled forward into calls.

    Args:
        events: events of torch's profiler, as ``kineto_results.events()`` has them.
        places: stage and module that begin at each event named :data:`MARK`, in order; the last event ends the forward.

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
            expected=f"{len(places)} marked calls",
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
    """Return the outermost host events in order, with nested events and their kernels."""
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
    """Return the median time of a runtime call that enqueues one kernel or copy; 0 without such calls."""
    spent = [s.spent for s in _every(top) if s.runtime and len(s.kernels) == 1]
    return median_low(spent) if spent else 0


def _every(spans: Iterable[_Span]) -> Iterator[_Span]:
    for span in spans:
        yield span
        yield from _every(span.inside)


class _CallReader:
    """Reader that divides the host time between two boundaries into operator calls.

    Args:
        place: stage and module after the first boundary.
        begin: time of the first boundary in nanoseconds.
        typical: nanoseconds of a launch that is not blocked.
    """

    def __init__(self, place: StageModule, begin: int, typical: int) -> None:
        self.piece = ProfiledPiece(place, [])
        self._at = begin
        self._typical = typical
        self._python = self._dispatch = 0
        """Host time since the last call, which counts for the next call."""

    def read(self, spans: Iterable[_Span], end: int) -> ProfiledPiece:
        """Return the operator calls up to ``end`` in nanoseconds, from the outermost events between the boundaries."""
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
        """Exclude the profiler's own work inside an event from the host time."""
        for part in _every(span.inside):
            if part.overhead:
                self._advance(part.start)
                self._at = max(self._at, part.end)

    def _advance(self, end: int) -> None:
        """Add the host time up to ``end`` to the dispatch time of the operator call."""
        self._dispatch += max(0, end - self._at)
        self._at = max(self._at, end)

    def _enqueue(self, part: _Span, work: _Work) -> None:
        """Add a runtime call, which launches or synchronises, to the operator call that makes it."""
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
    """Number and times of the kernels, copies and fills that one operator call enqueues."""

    launch: int = 0
    launches: int = 0
    device: int = 0
    synchronises: bool = False

    @property
    def any(self) -> bool:
        return self.launches > 0 or self.synchronises


@dataclass(frozen=True, slots=True)
class ProfiledWork:
    """Device work that the calls between two boundaries enqueue; times in nanoseconds."""

    host: int
    """Host time in nanoseconds, without the time in which the host waits for the device."""
    launch: int
    launches: int
    waits: bool
    """Whether the host waits for the device."""


def work_of(piece: ProfiledPiece) -> ProfiledWork:
    """Return the host time, launch time and number of launches of the calls between two boundaries, summed."""
    launch, launches = sum(c.launch for c in piece.calls), sum(c.launches for c in piece.calls)
    return ProfiledWork(piece.host, launch, launches, any(c.synchronises for c in piece.calls))
