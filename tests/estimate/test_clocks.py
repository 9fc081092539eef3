"""The two clocks of an eager run: by hand, and against a simulation of a host, a stream and a device by events."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import fields
from heapq import heappop, heappush
from itertools import count, pairwise
from random import Random
from typing import Any

import pytest

from costproof.estimate.clocks import (
    HOST_TIMES,
    Forward,
    StageClocks,
    StageKey,
    VariantTime,
    stage_clocks,
)
from costproof.ledger.profile import EnqueuedCall, Timing

HERE = ("prefill", "prompt")
SAM, CLIP = ("sam", "global"), ("clip", "global")


def call(python: int, dispatch: int, launch: int, device: int, *, synchronises: bool = False) -> EnqueuedCall:
    """A call with one kernel, or a view if it takes no time on the device."""
    return EnqueuedCall("aten.mm.default", "m", python, dispatch, launch, int(device > 0), device, synchronises)


def python(spent: int) -> EnqueuedCall:
    """The Python between the last operator of a piece and its boundary."""
    return EnqueuedCall("", "m", spent, 0, 0, 0, 0, False)


def clocks(*calls: EnqueuedCall, latency: int = 0) -> StageClocks:
    return stage_clocks([(HERE, calls)], latency)[HERE]


def idle(found: StageClocks) -> list[int]:
    """The device's idle time by what the host did: Python, dispatch, launch, waiting."""
    return [getattr(found, kind) for kind in HOST_TIMES]


def test_the_host_binds() -> None:
    # Enqueued at 10, 20, 30; each kernel of 4 ends before the next. The event arrives at 30, the last ends at 34.
    # Idle 10 until the first, then 10 - 4 before each: before an enqueue come 2 of launch, 3 of dispatch, 1 of Python.
    assert clocks(*[call(5, 3, 2, 4)] * 3) == StageClocks(
        calls=3, launches=3, host=30, device=12, both=34, python=5 + 1 + 1, dispatch=9, launch=6, synchronisation=0
    )
    assert clocks(*[call(5, 3, 2, 4)] * 3).binds == "host"


def test_the_device_binds() -> None:
    # The first kernel starts at 10 and the device is busy from then on: 10 + 3 x 25.
    found = clocks(*[call(5, 3, 2, 25)] * 3)
    assert (found.host, found.device, found.both, idle(found)) == (30, 75, 85, [5, 3, 2, 0])
    assert (found.binds, found.host_bound) == ("device", 10)


def test_the_device_falls_behind_and_is_caught_up() -> None:
    # Enqueued at 10, 20, 30, 40, 140. Kernels run 10 to 50, 50 to 52, 52 to 54, 54 to 56; then the host takes 100,
    # 16 of which pass before the device is done, and 84 of which it waits: 2 launch, 3 dispatch, 79 of Python.
    found = clocks(call(5, 3, 2, 40), *[call(5, 3, 2, 2)] * 3, call(95, 3, 2, 7))
    assert (found.both, idle(found)) == (140 + 7, [5 + 79, 3 + 3, 2 + 2, 0])
    assert found.device == 40 + 6 + 7


def test_a_call_that_synchronises_in_the_middle() -> None:
    # Latency 4. Enqueued at 10, runs 14 to 34; the copy is enqueued at 20 and runs 34 to 36. The host waits from 20 to
    # 36. The next is enqueued at 46, starts at 50 and runs to 55, when the event is long there.
    found = clocks(call(5, 3, 2, 20), call(5, 3, 2, 2, synchronises=True), call(5, 3, 2, 5), latency=4)
    # From the first stamp at 4: 10 idle, 22 busy, 14 idle of which the last 4 of its waiting are the latency, 5 busy.
    assert (found.both, found.device, idle(found)) == (55 - 4, 27, [10, 6, 4, 4])
    assert found.host == 30
    # Nothing waits for a device that is done.
    assert clocks(call(5, 3, 2, 1), call(9, 0, 0, 0, synchronises=True), call(5, 3, 2, 1)).synchronisation == 0


def test_without_synchronisation_the_launch_latency_shifts_all_stamps_alike() -> None:
    calls = [call(5, 3, 2, 4), call(1, 1, 1, 50), call(70, 3, 2, 1)]
    assert clocks(*calls, latency=1000) == clocks(*calls)


def test_views_take_the_host_alone() -> None:
    # The kernel of 8 runs 10 to 18. Two views until 30; the next is enqueued at 40 after 22 idle, of which the last 10
    # are its own host time, 10 that of the second view, and 2 of the first: its dispatch.
    found = clocks(call(5, 3, 2, 8), call(7, 3, 0, 0), call(7, 3, 0, 0), call(5, 3, 2, 8))
    assert (found.calls, found.launches, found.both) == (4, 2, 48)
    assert idle(found) == [5 + 5 + 7, 3 + 3 + 3 + 2, 2 + 2, 0]
    # A view at the end keeps the host busy while the last kernel runs; the event comes after both.
    assert clocks(call(5, 3, 2, 8), call(7, 3, 0, 0)).both == 20
    assert clocks(call(5, 3, 2, 80), call(7, 3, 0, 0)).both == 90


def test_several_kernels_of_an_operator_run_one_after_another() -> None:
    found = clocks(EnqueuedCall("aten.sort.stable", "m", 5, 3, 6, 3, 30, False))
    assert (found.calls, found.launches, found.both) == (1, 3, 44)


def test_a_processor_has_one_clock() -> None:
    # All work is inside the calls: the time is the sum, whatever synchronises.
    calls = [EnqueuedCall("aten.mm.default", "m", 5, 300, 0, 0, 0, i == 1) for i in range(3)]
    assert clocks(*calls) == StageClocks(3, 0, 915, 0, 915, 15, 900, 0, 0)
    assert clocks(*calls).binds == "host"


def test_a_stage_without_calls_takes_no_time() -> None:
    assert clocks() == StageClocks(0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert stage_clocks([]) == {}


def test_stages_pass_both_clocks_on() -> None:
    # The kernels of 100 are enqueued at 10 and 20 and run to 210. The event at the end of sam is enqueued at 20 and
    # stamped at 210. Clip enqueues at 30 and 40, long before: its kernels run 210 to 215 and 215 to 220.
    found = stage_clocks([(SAM, [call(5, 3, 2, 100)] * 2), (CLIP, [call(5, 3, 2, 5)] * 2)])
    assert [(c.both, idle(c)) for c in found.values()] == [(210, [5, 3, 2, 0]), (10, [0, 0, 0, 0])]
    # The same calls by themselves: 10 until the first, 10 - 5 between them, 5 + 5.
    assert clocks(*[call(5, 3, 2, 5)] * 2).both == 10 + 5 + 5 + 5


def test_python_before_a_boundary_belongs_to_the_stage_that_ends() -> None:
    # Enqueued at 10, runs to 14; the boundary is passed at 40. Then 10 until the next.
    found = stage_clocks([(SAM, [call(5, 3, 2, 4), python(30)]), (CLIP, [call(5, 3, 2, 4)])])
    assert [(c.both, c.calls, idle(c)) for c in found.values()] == [(40, 1, [5 + 26, 3, 2, 0]), (14, 1, [5, 3, 2, 0])]


def test_a_stage_that_is_left_and_entered_again_sums_its_pieces() -> None:
    pieces = [(HERE, [call(5, 3, 2, 4)]), (SAM, [call(5, 3, 2, 50)]), (HERE, [call(5, 3, 2, 4)])]
    found = stage_clocks(pieces)
    # 14; then idle from 14 to 20, busy to 70; then the kernel that waited since 30, to 74.
    assert [(c.both, c.calls) for c in found.values()] == [(14 + 4, 2), (56, 1)]


class Machine:
    """A host, a stream and a device in simulated time; what happens next is always the earliest event of a heap."""

    def __init__(self, latency: int) -> None:
        self.latency = latency
        self.now = 0
        self.order = count()
        self.events: list[tuple[int, int, Any, Any]] = []
        self.stream: deque[tuple[int, Any]] = deque()
        self.running = False
        self.outstanding = 0
        self.waiting: Any = None
        self.did: list[str] = []  # what the host did in each nanosecond
        self.busy: set[int] = set()  # nanoseconds in which a kernel runs
        self.stamps: list[int] = []

    def at(self, when: int, what: Any, argument: Any = None) -> None:
        heappush(self.events, (when, next(self.order), what, argument))

    def enqueue(self, length: int, done: Any = None) -> None:
        self.outstanding += 1
        self.at(self.now + self.latency, self.arrive, (length, done))

    def arrive(self, work: tuple[int, Any]) -> None:
        self.stream.append(work)
        self.start()

    def start(self) -> None:
        if not self.running and self.stream:
            self.running = True
            length, done = self.stream.popleft()
            self.busy.update(range(self.now, self.now + length))
            self.at(self.now + length, self.finish, done)

    def finish(self, done: Any) -> None:
        self.running = False
        self.outstanding -= 1
        if done is not None:
            done()
        if self.waiting is not None and not self.outstanding:
            host, self.waiting = self.waiting, None
            self.did += ["synchronisation"] * (self.now - len(self.did))
            self.resume(host)
        self.start()

    def resume(self, host: Generator[tuple[str, int]]) -> None:
        for what, length in host:
            if what == "wait":
                if self.outstanding:
                    self.waiting = host
                    return
                continue
            self.did += [what] * length
            if length:
                self.at(self.now + length, self.resume, host)
                return

    def host(self, forward: Forward) -> Generator[tuple[str, int]]:
        """What the host does, in turn, while time passes between."""
        self.enqueue(0, lambda: self.stamps.append(self.now))
        for _, calls in forward:
            for one in calls:
                yield "python", one.python
                yield "dispatch", one.dispatch
                yield "launch", one.launch
                if one.launches:
                    self.enqueue(one.device)
                if one.synchronises:
                    yield "wait", 0
            self.enqueue(0, lambda: self.stamps.append(self.now))

    def run(self, forward: Forward) -> dict[StageKey, Counter[str]]:
        self.at(0, self.resume, self.host(forward))
        while self.events:
            self.now, _, what, argument = heappop(self.events)
            what(argument)
        found: dict[StageKey, Counter[str]] = defaultdict(Counter)
        for (stage, _), (begin, end) in zip(forward, pairwise(self.stamps), strict=True):
            found[stage]["both"] += end - begin
            for moment in range(begin, end):
                # What the device lacks now, the host should have enqueued a latency ago.
                what = "device" if moment in self.busy else self.did[moment - self.latency]
                found[stage][what] += 1
        return found


def random_forward(source: Random) -> list[tuple[StageKey, Sequence[EnqueuedCall]]]:
    """Up to six pieces of three stages; kernels are rare or long, or the host is, so that either may bind."""
    most, stages = source.choice(((4, 20), (20, 4), (9, 9))), (HERE, SAM, CLIP)

    def one() -> EnqueuedCall:
        if source.random() < 0.1:
            return python(source.randrange(most[0]))
        before, inside = source.randrange(most[0]), source.randrange(most[0])
        launches = source.choice((0, 1, 1, 3))
        device = source.randrange(most[1]) if launches else 0
        launch = source.randrange(most[0]) if launches else 0
        return EnqueuedCall("op", "m", before, inside, launch, launches, device, source.random() < 0.15)

    return [(source.choice(stages), [one() for _ in range(source.randrange(9))]) for _ in range(source.randrange(7))]


@pytest.mark.parametrize("seed", range(5))
def test_the_recurrence_is_what_a_simulation_of_events_gives(seed: int) -> None:
    source = Random(seed)
    bound = Counter[str]()
    for _ in range(100):
        forward, latency = random_forward(source), source.choice((0, 0, 1, 5, 30))
        simulated = Machine(latency).run(forward)
        found = stage_clocks(forward, latency)
        for stage, its in found.items():
            calls = [one for place, calls in forward if place == stage for one in calls]
            assert {k: getattr(its, k) for k in ("both", *HOST_TIMES, "device")} == {
                k: simulated[stage][k] for k in ("both", *HOST_TIMES, "device")
            }
            assert its.both == its.device + sum(idle(its))
            assert its.device == sum(one.device for one in calls)
            assert its.host == sum(one.python + one.dispatch + one.launch for one in calls)
            bound.update(k for k in ("device", *HOST_TIMES) if getattr(its, k))
    # Everything occurs in these forwards.
    assert all(bound[kind] > 20 for kind in ("device", *HOST_TIMES))


def test_both_clocks_take_at_least_as_long_as_either() -> None:
    source = Random(42)
    for _ in range(300):
        calls = [one for _, piece in random_forward(source) for one in piece]
        found = clocks(*calls, latency=source.randrange(9))
        assert max(found.host, found.device) <= found.both
        assert found.both <= found.host + found.device + 9 * sum(one.synchronises for one in calls)


def test_a_graph_takes_its_kernels_and_one_replay() -> None:
    assert VariantTime(Timing((112,)), "", 100, 7, 4).predicted == 111
    assert VariantTime(Timing((108,)), "", 100, 7).predicted is None
    assert VariantTime(None, "aten.nonzero.default synchronises").predicted is None


def test_every_field_is_one_of_the_simulation_or_a_sum() -> None:
    assert [f.name for f in fields(StageClocks)] == [
        "calls", "launches", "host", "device", "both", *HOST_TIMES, "binds",
    ]  # fmt: skip
