"""Measure this machine's times outside of operators: for a module call, a kernel start, and a graph replay.

The times of a module call and of an operator in a forward are the means over a small decoder of transformers, divided
into calls as in :mod:`costproof.tracers.eager_calls`; the same operators are also timed in isolation. The time from a
launch to the start of its kernel is the median over launches on an idle device, by the profiler's clock. A replay and
the gap between its kernels are those of graphs of small kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Final

import torch
from torch import nn

from costproof.estimate.hardware import DeviceFigure, FigureQuote
from costproof.ledger.profile import EnqueuedCall
from costproof.ledger.progress import Progress, silent
from costproof.models.specs import Run
from costproof.tracers.eager_calls import launch_latency, measure_calls, profile_calls
from costproof.tracers.replay import replay_operators
from costproof.tracers.stage_variants import capture, other_data
from costproof.tracers.timing import time_events, time_stage_clocks, watch_modules

_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
_TOKENS: Final = 16
_TIMES: Final = 9
_REPEATED: Final = 3
"""Number of measurements; the fastest one counts, since other work on the machine can only slow one down."""
_LEAST: Final = 100
"""Least host time in nanoseconds; smaller times are noise of the clocks."""
_CHAIN: Final = 50
"""Number of kernels by which the longer of two timed CUDA graphs exceeds the shorter."""
_WIDTH: Final = 512
"""Width of the layers in the blocks that are timed together."""
_PROFILES: Final = 5
"""Number of profiled runs after the warm-up run; their median is used."""
_BLOCKS: Final = 24
"""Number of blocks, of about five kernels each, that are timed together."""


def _network(run: str) -> Run:
    """Return a run of a small transformers decoder, with typical modules and Python code around operators."""
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
    """Return the measured figure of each host cost of this machine, by field of a device file.

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
    operators = sum(bool(call.operator) for call in repeated[0])
    in_run = min(sum(call.dispatch + call.launch for call in calls if call.operator) for calls in repeated)
    found = [(c.calls, c.enqueue) for c in replay_operators(forward, _REPEATED, progress) if c.enqueue is not None]
    apart = sum(calls * (each.dispatch + each.launch) for calls, each in found)
    for name, spent, where in (("operator_in_run", in_run, ""), ("operator_alone", apart, ", each by itself")):
        figures[name] = figure(spent // operators, f"{spent:,} ns in {operators:,} operators of the decoder{where}")
    latency, graph = launch_latency(), measure_graph()
    if latency is not None:
        figures["launch_latency"] = figure(latency, "the median of launches on an idle device")
    if graph is not None:
        (one, alone), (launches, kernels, mixed) = graph.cold, graph.mixture
        said = f"a graph of {launches:,} kernels in {mixed:,} ns, the kernels in an eager run {kernels:,} ns"
        figures["graph_gap"] = DeviceFigure(graph.gap, (FigureQuote(source, said),))
        said = f"a graph of one kernel in {one:,} ns after other data was read, the kernel {alone:,} ns"
        figures["graph_replay"] = DeviceFigure(graph.replay, (FigureQuote(source, said),))
    return figures


@dataclass(frozen=True, slots=True)
class GraphTimes:
    """Overheads of a CUDA graph besides its kernels, in nanoseconds, in a queue that is never empty."""

    gap: int
    """Nanoseconds that each kernel in a CUDA graph takes beyond its time in an eager run."""
    replay: int
    """Nanoseconds that each replay of a CUDA graph takes besides its kernels and their gaps."""
    cold: tuple[int, int]
    """Times of a graph of one small kernel, and of that kernel in an eager run, both with cold caches."""
    mixture: tuple[int, int, int]
    """Launches in a mixture of kernels, the time of these kernels in an eager run, and the time of their graph."""


class _Mixture(nn.Module):
    """Sequence of typical kernels which, unlike transformers, takes the same branches while a graph is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the norms and MLPs to [tokens, width] and return [tokens, width]."""
        for _ in range(_BLOCKS):
            x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x


class _Cold(nn.Module):
    """Module that runs a small kernel after reading other data, so that caches are cold."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(1, device="cuda"), requires_grad=False)
        self.other = other_data()

    def forward(self) -> None:
        self.other.sum()
        self.number.add_(1)


def measure_graph() -> GraphTimes | None:
    """Measure the overheads of a CUDA graph: per replay, per kernel, and of a graph that is not in the caches.

    The overhead of a kernel is the time of a graph of mixed kernels, minus a replay and the kernels' profiled times in
    an eager run, divided by their number. The replay is the time of a graph of one kernel, minus the time that each
    kernel of a longer graph adds. The replay of a graph that is not in the caches, as between other work, is the time
    of a graph of one kernel then, minus that kernel's. The device is busy until a graph is enqueued: on an idle device
    the time would include that of the host, which grows with the number of kernels too.

    Returns:
        ``None`` if the device captures no graphs, or the profiler sees no kernels.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        cold = _Cold()
        number, other = cold.number, cold.other
        mixture = _Mixture().to("cuda", torch.bfloat16).eval()
        x = torch.zeros(_TOKENS, _WIDTH, device="cuda", dtype=torch.bfloat16)

        def chain(kernels: int) -> int:
            return _graph_time(lambda: [number.add_(1) for _ in range(kernels)])

        try:
            one, more, mixed = chain(1), chain(1 + _CHAIN), _graph_time(lambda: mixture(x))
            cold_one = _graph_time(lambda: number.add_(1), other.sum)
        except RuntimeError:
            return None
        passes, of_cold = _profiles(mixture, {"x": x}), _profiles(cold, {})
    if not all(passes) or not all(of_cold):
        return None
    launches = sum(call.launches for call in passes[0])
    alone = median_low(calls[-1].device for calls in of_cold)
    kernels = median_low(sum(call.device for call in calls) for calls in passes)
    gap = max(0, mixed - max(0, one - (more - one) // _CHAIN) - kernels) // launches
    return GraphTimes(gap, max(0, cold_one - alone - gap), (cold_one, alone), (launches, kernels, mixed))


def _profiles(model: nn.Module, inputs: dict[str, Any]) -> list[list[EnqueuedCall]]:
    """Return the calls that enqueue kernels, in each of several profiled runs of a model."""
    run = Run("graphs", model, inputs, lambda path, call: ("graphs", ""))
    every = [[c for piece in profile_calls(run, [""]) for c in piece.calls] for _ in range(1 + _PROFILES)][1:]
    return [[call for call in calls if call.launches] for calls in every]


def _graph_time(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> int:
    """Return the median nanoseconds of a replay of ``work`` captured as a CUDA graph.

    Args:
        work: function to be captured.
        before: function that is called before each replay, outside of the measured time.

    Raises:
        RuntimeError: the device captures no graphs.
    """
    graph: Any = torch.cuda.CUDAGraph()
    try:
        capture(graph, lambda nothing: work(), lambda: None)
        return time_events(lambda nothing: graph.replay(), before, 2, _TIMES, queued=True).median
    finally:
        graph.reset()
