"""Measure the host times of an eager run on this machine: a module call, an operator, a launch, and a graph's replay.

They are the means over a small network of the usual modules, divided into calls as in
:mod:`costproof.tracers.eager_calls`. The time from a launch to the start of its kernel is the median over launches on
an idle device, by the profiler's clock. A replay is that of a CUDA graph of one small kernel on an idle device, less
the time of that kernel among many in the queue.
"""

from __future__ import annotations

from statistics import median_low
from typing import Any, Final

import torch
from torch import nn

from costproof.estimate.hardware import DeviceFigure, FigureQuote
from costproof.ledger.profile import EnqueuedCall
from costproof.models.specs import Run
from costproof.tracers.eager_calls import launch_latencies, measure_calls, queued_kernel
from costproof.tracers.stage_variants import capture
from costproof.tracers.timing import time_events, time_stage_clocks

_BLOCKS: Final = 16
_WIDTH: Final = 64
_TIMES: Final = 9
_REPEATED: Final = 3
"""Measurements, of which the fastest counts: other work on the machine can only slow it down."""
_LEAST: Final = 100
"""Nanoseconds; smaller figures are noise of the clocks."""


class _SmallBlock(nn.Module):
    """The usual modules of a transformer, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU()
        self.down = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, D]."""
        result: torch.Tensor = x + self.down(self.act(self.up(self.norm(x)))).view(x.shape)
        return result


def measure_host(run: str, source: str) -> dict[str, DeviceFigure]:
    """Return the host figures of this machine by the names of the fields of a device.

    Args:
        run: ``cpu`` or ``cuda``. On a processor only the module call is a figure: operators run inside their calls.
        source: id of the source that the quotes name.
    """
    network = nn.Sequential(*(_SmallBlock() for _ in range(_BLOCKS))).to(run).eval()
    forward = Run("host", network, {"input": torch.zeros(4, _WIDTH, device=run)}, lambda path, call: ("network", ""))
    repeated: list[list[EnqueuedCall]] = []
    for _ in range(_REPEATED):
        _, host = time_stage_clocks([forward], _TIMES)
        repeated.append([call for _, calls in measure_calls([forward], host)["host"] for call in calls])
    modules = 5 * _BLOCKS + 1

    def figure(value: int, text: str) -> DeviceFigure:
        return DeviceFigure(max(_LEAST, value), (FigureQuote(source, text),))

    def mean(what: str, among: int, of: str) -> DeviceFigure:
        spent = min(sum(getattr(call, what) for call in calls) for calls in repeated)
        return figure(spent // among, f"{spent:,} ns in {among:,} {of} of a small network, the fastest of {_REPEATED}")

    figures = {"module_call": mean("python", modules, "calls of modules")}
    if run == "cpu":
        return figures
    calls = repeated[0]
    launches = sum(call.launches for call in calls)
    figures["operator_dispatch"] = mean("dispatch", sum(bool(call.operator) for call in calls), "operators")
    figures["kernel_launch"] = mean("launch", launches, "launches")
    late = launch_latencies()
    figures["launch_latency"] = figure(median_low(late), f"the median of {len(late)} launches on an idle device")
    text = f"the median of {_TIMES} replays of a graph of one kernel, less the kernel"
    figures["graph_replay"] = figure(replay_time(), text)
    return figures


def replay_time() -> int:
    """Return the time of a graph of one small kernel on an idle device, less that of one among many in the queue."""
    number = torch.zeros(1, device="cuda")
    graph: Any = torch.cuda.CUDAGraph()
    capture(graph, lambda nothing: number.add_(1), lambda: None)
    try:
        replay = time_events(lambda nothing: graph.replay(), lambda: None, 1, _TIMES).median
    finally:
        graph.reset()
    return max(0, replay - queued_kernel(number))
