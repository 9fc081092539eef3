"""Measure the host times of an eager run on this machine: a module call, an operator, a launch, and a graph's replay.

They are the means over a small decoder of transformers, divided into calls as in
:mod:`costproof.tracers.eager_calls`. The time from a launch to the start of its kernel is the median over launches on
an idle device, by the profiler's clock. A replay is that of a CUDA graph of one small kernel on an idle device, less
the time of that kernel among many in the queue.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from costproof.estimate.hardware import DeviceFigure, FigureQuote
from costproof.ledger.profile import EnqueuedCall
from costproof.ledger.progress import Progress, silent
from costproof.models.specs import Run
from costproof.tracers.eager_calls import launch_latency, measure_calls, queued_kernel
from costproof.tracers.stage_variants import capture
from costproof.tracers.timing import time_events, time_stage_clocks, watch_modules

_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
_TOKENS: Final = 16
_TIMES: Final = 9
_REPEATED: Final = 3
"""Number of measurements; the fastest counts, since other work on the machine can only slow it down."""
_LEAST: Final = 100
"""Nanoseconds; smaller figures are noise of the clocks."""


def _network(run: str) -> Run:
    """Return a small decoder of transformers: the usual modules, with the usual Python around their operators."""
    from transformers import LlamaConfig, LlamaModel

    with torch.random.fork_rng(devices=[]):
        model = LlamaModel(LlamaConfig(**_SIZES)).to(run).eval()
    inputs = {"input_ids": torch.zeros(1, _TOKENS, dtype=torch.int64, device=run), "use_cache": False}
    return Run("host", model, inputs, lambda path, call: ("network", ""))


def _module_calls(forward: Run) -> int:
    """Return the number of module calls in a forward."""
    boundaries = list[str]()
    paths = [path for path, _ in forward.model.named_modules()]
    with watch_modules(forward, paths, lambda stage, path: boundaries.append(path)), torch.no_grad():
        forward.model(**forward.inputs())
    return len(boundaries) // 2


def measure_host(run: str, source: str, progress: Progress = silent) -> dict[str, DeviceFigure]:
    """Return the host figures of this machine by the names of the fields of a device, those that can be measured.

    Args:
        run: ``cpu`` or ``cuda``. On a processor only the module call is a figure: operators run inside their calls.
        source: id of the source that the quotes name.
        progress: called with the steps.
    """
    forward = _network(run)
    repeated: list[list[EnqueuedCall]] = []
    for i in range(_REPEATED):
        progress("host times", i, _REPEATED)
        _, host = time_stage_clocks([forward], _TIMES)
        repeated.append([call for _, calls in measure_calls([forward], host).get("host", ()) for call in calls])
    progress("host times", _REPEATED, _REPEATED)
    modules = _module_calls(forward)

    def figure(value: int, text: str) -> DeviceFigure:
        return DeviceFigure(max(_LEAST, value), (FigureQuote(source, text),))

    def mean(what: str, among: int, of: str) -> DeviceFigure:
        spent = min(sum(getattr(call, what) for call in calls) for calls in repeated)
        return figure(spent // among, f"{spent:,} ns in {among:,} {of} of a small decoder, the fastest of {_REPEATED}")

    if not all(repeated):
        return {}
    figures = {"module_call": mean("python", modules, "calls of modules")}
    if run == "cpu":
        return figures
    calls = repeated[0]
    launches, latency, replay = sum(call.launches for call in calls), launch_latency(), replay_time()
    figures["operator_dispatch"] = mean("dispatch", sum(bool(call.operator) for call in calls), "operators")
    figures["kernel_launch"] = mean("launch", launches, "launches")
    if latency is not None:
        figures["launch_latency"] = figure(latency, "the median of launches on an idle device")
    if replay is not None:
        figures["graph_replay"] = figure(replay, f"the median of {_TIMES} replays of one kernel, less the kernel")
    return figures


def replay_time() -> int | None:
    """Return the nanoseconds to replay a one-kernel CUDA graph on an idle device, minus the time of the kernel.

    ``None`` if the device captures no graphs.
    """
    number = torch.zeros(1, device="cuda")
    graph: Any = torch.cuda.CUDAGraph()
    try:
        capture(graph, lambda nothing: number.add_(1), lambda: None)
        replay = time_events(lambda nothing: graph.replay(), lambda: None, 2, _TIMES).median
    except RuntimeError:
        return None
    finally:
        graph.reset()
    return max(0, replay - queued_kernel(number))
