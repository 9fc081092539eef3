"""Model an eager run by two clocks: a host that enqueues work, and a device that runs the work in order.

For call i of a forward, with host_i its host time (Python before it, dispatch and launch), device_i the time of its
kernels, and L the launch latency:

    enqueue_i = enqueue_(i-1) + host_i
    start_i   = max(enqueue_i + L, end_(i-1))
    end_i     = start_i + device_i

A call that enqueues nothing (a view) advances the host only. A call that synchronises sets the host to the device,
``enqueue_i = max(enqueue_i, end_i)``, and the next call starts from there.

The CUDA events that time a stage are work of length 0 on the same stream: an event is stamped at
``max(enqueue + L, end)`` of the host and of the work before it. The time of a stage is the difference of two stamps.
All stages of a forward share both clocks: a stage may begin while the device still runs the one before, and its time
then begins when the device is done with that. Within a stage the device is either busy, which is the device-bound
part, or idle because the work is not enqueued yet, which is the host-bound part.

On a processor the work is done inside the calls, which enqueue nothing: the same recurrence is then the sum of all host
times. The queue of the device is taken to be unbounded; CUDA's holds about a thousand launches, so that a host which
is further ahead waits, while the device is busy anyway.

All times are whole nanoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

from costproof.ledger.profile import EnqueuedCall, Timing

HostTime = Literal["python", "dispatch", "launch", "synchronisation"]
HOST_TIMES: Final[tuple[HostTime, ...]] = ("python", "dispatch", "launch", "synchronisation")
BindingClock = Literal["host", "device"]
StageKey = tuple[str, str]
"""(stage, invocation)."""
Forward = Sequence[tuple[StageKey, Sequence[EnqueuedCall]]]
"""Operator calls of a forward in order, split at every stage boundary, where a CUDA event is recorded.

A stage that is left and entered again has several pieces. Python between the last operator of a piece and its boundary
is a call without an operator: ``EnqueuedCall("", module, python, 0, 0, 0, 0, False)``; without it, that time is part of
the first call of the next piece.
"""


@dataclass(frozen=True, slots=True)
class StageClocks:
    """Host time and device time of a stage in one forward, in nanoseconds.

    ``both = device + python + dispatch + launch + synchronisation``, exactly.
    """

    calls: int
    """Number of operators that the stage calls."""
    launches: int
    """Number of kernels, copies and fills that these operators enqueue."""
    host: int
    """Host time: Python, dispatch and launches of all calls, without any waiting."""
    device: int
    """Device time: all kernels one after another, the device-bound part; 0 on a processor."""
    both: int
    """Time between the events at the stage's boundaries, by the recurrence of this module."""
    python: int
    """Device idle time while the host runs the Python code of modules."""
    dispatch: int
    """Device idle time while the host is in the dispatcher or the allocator; on a processor it includes the work."""
    launch: int
    """Device idle time while the host enqueues work."""
    synchronisation: int
    """Device idle time after a synchronisation: the launch latency of the first work that follows."""
    binds: BindingClock = "host"
    """The clock that takes longer, ``host`` or ``device``; the host if both are equal."""

    @property
    def host_bound(self) -> int:
        """Return the nanoseconds in which the device is idle for lack of enqueued work."""
        return self.both - self.device


def stage_clocks(forward: Forward, latency: int = 0) -> dict[StageKey, StageClocks]:
    """Return the host and device times of each stage of a forward, by simulating both clocks.

    The device is idle in the last nanoseconds before the host has enqueued the next work. They are attributed to the
    kinds of time that the host spent then; its waiting in a synchronising call is ``synchronisation``.

    Args:
        forward: its calls, by stage.
        latency: nanoseconds from the enqueueing of work to its start on an idle device.
    """
    enqueue, end = 0, latency  # the event at the beginning is stamped at the latency
    since: list[tuple[HostTime, int]] = []
    """(kind, nanoseconds) of the host's activities since it last enqueued work."""
    found: dict[StageKey, Counter[str]] = {}

    def run(work: int, into: Counter[str]) -> None:
        """Run work on the simulated device, starting once the work has arrived and earlier work has finished."""
        nonlocal end
        idle = max(0, enqueue + latency - end)
        into["both"] += idle + work
        end += idle + work
        while idle:
            kind, span = since.pop()
            into[kind] += min(span, idle)
            idle -= min(span, idle)
        since.clear()

    for stage, calls in forward:
        spent = found.setdefault(stage, Counter())
        for call in calls:
            since += ("python", call.python), ("dispatch", call.dispatch), ("launch", call.launch)
            enqueue += call.python + call.dispatch + call.launch
            if call.launches or call.device:
                run(call.device, spent)
            if call.synchronises and end > enqueue:
                since.append(("synchronisation", end - enqueue))
                enqueue = end
            spent["calls"] += bool(call.operator)
            spent["launches"] += call.launches
            spent["host"] += call.python + call.dispatch + call.launch
            spent["device"] += call.device
        run(0, spent)  # the event at the boundary
    names = [f.name for f in fields(StageClocks) if f.name != "binds"]
    return {
        stage: StageClocks(
            **{name: spent[name] for name in names}, binds="device" if spent["device"] > spent["host"] else "host"
        )
        for stage, spent in found.items()
    }


@dataclass(frozen=True, slots=True)
class VariantTime:
    """Time of a stage as a CUDA graph or compiled, with a prediction."""

    time: Timing | None
    """Measured time of the stage in this form; ``None`` if it does not run in this form."""
    why: str = ""
    """Reason why the stage does not run in this form; empty if it does."""
    kernels: int | None = None
    """Nanoseconds of the stage's kernels in the eager run; ``None`` if not measured."""
    replay: int | None = None
    """Nanoseconds of one replay besides kernels and gaps, measured once per machine; ``None`` if not measured."""
    gaps: int | None = None
    """Nanoseconds of all gaps between kernels: their number times one gap, measured once per machine."""

    @property
    def predicted(self) -> int | None:
        """Return the nanoseconds of kernels, gaps and one replay; ``None`` if any of these is unknown."""
        parts = self.kernels, self.gaps, self.replay
        return None if None in parts else sum(part for part in parts if part is not None)
