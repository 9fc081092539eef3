"""The two clocks of an eager run, by hand and against a simulator of events."""

from __future__ import annotations

from costproof.estimate.clocks import StageClocks, stage_clocks
from costproof.ledger.profile import EnqueuedCall

HERE = ("prefill", "prompt")


def call(python: int, dispatch: int, launch: int, device: int, *, synchronises: bool = False) -> EnqueuedCall:
    """A call with one kernel, or a view if it takes no time on the device."""
    return EnqueuedCall("aten.mm.default", "m", python, dispatch, launch, int(device > 0), device, synchronises)


def test_the_host_binds() -> None:
    # Enqueued at 10, 20, 30; each kernel of 4 ends before the next. The event arrives at 30, the last ends at 34.
    clocks = stage_clocks([(HERE, [call(5, 3, 2, 4)] * 3)])[HERE]
    # Idle 10 until the first, then 10 - 4 before each: before an enqueue come 2 of launch, 3 of dispatch, 1 of Python.
    assert clocks == StageClocks(
        calls=3, launches=3, host=30, device=12, both=34, python=5 + 1 + 1, dispatch=9, launch=6, synchronisation=0
    )
    assert (clocks.binds, clocks.host_bound) == ("host", 22)
