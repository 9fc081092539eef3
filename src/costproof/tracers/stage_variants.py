"""Time each stage of a forward as a CUDA graph and under ``torch.compile``, independently of host overhead.

A stage consists of calls of modules at its boundary. One forward records their inputs, copied before the call, since a
call may write into its cache, and their outputs. Each call can then be repeated by itself; a module inside it that
belongs to another stage returns the outputs that it had. All calls of a stage are captured in one graph, on a stream of
its own, after two warm-up runs there. A replay is timed while the device is busy until it is enqueued, so that the time
is that of the device only. Before it the caches of the device are filled with other data, as in a forward, where the
other stages and layers run in between.

A stage whose operators wait for the device cannot be captured, unless its code takes another branch then, as that of
transformers does for masks. A failed capture is contained: the stream of the caller is the current one again, the
generator's state is a copy during the capture, and a kernel must run afterwards.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from costproof.ledger.errors import Incomplete, first_line
from costproof.ledger.profile import Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.specs import Run
from costproof.patches.modules import hooked
from costproof.tracers.eager_calls import EagerForward
from costproof.tracers.hooks import ROOT
from costproof.tracers.timing import Stage, T, stage_boundaries, time_events, timed_device

TimingByVariant = dict[tuple[str, str, str], Timing | str]
"""Time of a stage as a CUDA graph or compiled, or why it cannot run so, by (run, stage, invocation)."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments of a call."""

_WARM: Final = 2
"""Number of runs before a CUDA graph is captured, to reserve library workspaces, and before timed runs."""
_CACHE: Final = 2**27
"""Assumed bytes of the last-level cache of a device that does not report its size; no device has more."""
NOT_ON_CPU: Final = {
    "graph": "CUDA graphs record the kernels of a GPU; operators of a processor run when they are called",
    "compiled": "on a processor the eager run has one clock, which compiling does not separate",
}
"""Reason why a stage on a CPU cannot be timed as a CUDA graph or compiled, by variant."""


@dataclass(slots=True)
class BoundaryCall:
    """A recorded module call at a stage boundary, which can be repeated by itself."""

    module: nn.Module
    stage: Stage
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    inside: list[BoundaryCall] = field(default_factory=list)
    """Nested calls of modules of other stages, in order."""

    def prepare(self) -> Inputs:
        """Return a copy of the call's inputs, since the call may modify them."""
        copied: Inputs = copy.deepcopy((self.args, self.kwargs))
        return copied

    @contextmanager
    def stubbed(self, stub: Callable[[Sequence[Any]], Callable[..., Any]]) -> Iterator[None]:
        """Replace ``forward`` of nested modules of other stages by recorded outputs, while the block runs.

        Args:
            stub: returns a function that returns the recorded outputs in turn, for any number of calls.
        """
        with ExitStack() as undo:
            outputs: dict[nn.Module, list[Any]] = {}
            for call in self.inside:
                outputs.setdefault(call.module, []).append(call.output)
            for module, recorded in outputs.items():
                own = vars(module)
                if "forward" in own:
                    undo.callback(own.update, forward=own["forward"])
                else:
                    undo.callback(own.pop, "forward", None)
                own["forward"] = stub(recorded)
            yield


class _Recorded:
    """Function that returns recorded outputs in turn."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._outputs, self._next = outputs, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._next += 1
        return self._outputs[(self._next - 1) % len(self._outputs)]


def time_graphs(
    runs: Sequence[Run], eager: Mapping[str, EagerForward], count: int, progress: Progress = silent
) -> TimingByVariant:
    """Capture each stage as a CUDA graph and time ``count`` replays after two warm-up replays.

    Args:
        runs: the forwards.
        eager: calls by run, which show whether a stage waits for the device.
        count: number of timed replays.
    """
    return _each_stage(runs, eager, "graph", "capture the stages", progress, lambda calls: _time_graph(calls, count))


def time_compiled(
    runs: Sequence[Run], eager: Mapping[str, EagerForward], count: int, progress: Progress = silent
) -> TimingByVariant:
    """Compile each stage with ``torch.compile`` in its default mode, and time ``count`` runs after two warm-up runs."""
    try:
        return _each_stage(
            runs, eager, "compiled", "compile the stages", progress, lambda calls: _time_compiled(calls, count)
        )
    finally:
        torch._dynamo.reset()


def _each_stage(
    runs: Sequence[Run],
    eager: Mapping[str, EagerForward],
    variant: str,
    what: str,
    progress: Progress,
    measure: Callable[[Sequence[BoundaryCall]], Timing | str],
) -> TimingByVariant:
    found: TimingByVariant = {}
    total = sum(len(_stages(eager.get(run.id, ()))) for run in runs)
    for run in runs:
        stages = _stages(eager.get(run.id, ()))
        if timed_device(run.model) == "cpu":
            found |= {(run.id, *stage): NOT_ON_CPU[variant] for stage in stages}
            continue
        calls: dict[Stage, list[BoundaryCall]] = {}
        failed = ""
        try:
            for call in record_stage_calls(run):
                calls.setdefault(call.stage, []).append(call)
        except Exception as error:  # an input may be anything, and refuse to be copied
            failed = first_line(error)
        for stage, waiting in stages.items():
            progress(what, len(found), total)
            with torch.no_grad(), run.around():
                time = failed or measure(calls.get(stage, []))
            waits = waiting if variant == "graph" and isinstance(time, str) and not failed else ""
            found[run.id, *stage] = f"{time} ({waits})" if waits else time
    progress(what, total, total)
    return found


def _stages(forward: EagerForward) -> dict[Stage, str]:
    """Return, by stage, a text on the first operator that waits for the device; empty if none waits."""
    found: dict[Stage, str] = {}
    for stage, calls in forward:
        waiting = (f"{c.operator} in {c.module or ROOT} waits for the device" for c in calls if c.synchronises)
        found[stage] = found.get(stage) or next(waiting, "")
    return found


def record_stage_calls(run: Run) -> list[BoundaryCall]:
    """Run a forward; return the module calls at stage boundaries, in the order in which they begin."""
    paths = {run.model.get_submodule(path): path for path in stage_boundaries(run)}
    numbers = dict.fromkeys(paths, 0)
    found: list[BoundaryCall] = []
    open_calls: list[BoundaryCall] = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        numbers[module] += 1
        call = BoundaryCall(module, run.locate(paths[module], numbers[module]), *copy.deepcopy((args, kwargs)))
        if open_calls:
            open_calls[-1].inside.append(call)
        found.append(call)
        open_calls.append(call)

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if open_calls:  # without any if its inputs could not be copied
            open_calls.pop().output = output

    kwargs = run.inputs()
    with hooked(paths, enter, leave, with_kwargs=True), torch.no_grad(), run.around():
        run.model(**kwargs)
    return found


def _time_graph(calls: Sequence[BoundaryCall], count: int) -> Timing | str:
    graph: Any = torch.cuda.CUDAGraph()
    try:
        # A replay reads the inputs where they were during the capture, so they must live until then.
        read = capture(graph, lambda inputs: _run(calls, inputs), lambda: [call.prepare() for call in calls])
        time = time_events(lambda nothing: graph.replay(), other_data().sum, _WARM, count, queued=True)
        del read
        return time
    except Exception as error:  # torch and the code of a model may raise anything while capturing
        return first_line(error)
    finally:
        with suppress(RuntimeError):  # a device that failed says so in the check
            graph.reset()
            torch.cuda.empty_cache()  # the memory of a graph is its own
        _check_device()


def other_data() -> torch.Tensor:
    """Return a tensor large enough to replace the content of the device's last-level cache when it is read."""
    size = int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", _CACHE))
    return torch.empty(size // 2, dtype=torch.float32, device="cuda")


def _run(calls: Sequence[BoundaryCall], inputs: Sequence[Inputs]) -> None:
    for call, (args, kwargs) in zip(calls, inputs, strict=True):
        with call.stubbed(_Recorded):
            call.module(*args, **kwargs)


def _time_compiled(calls: Sequence[BoundaryCall], count: int) -> Timing | str:
    disable: Any = torch.compiler.disable
    try:
        with ExitStack() as undo:
            for call in calls:
                undo.enter_context(call.stubbed(lambda outputs: disable(_Recorded(outputs).__call__)))
            compiled = [torch.compile(call.module) for call in calls]

            def run(inputs: Sequence[Inputs]) -> None:
                for module, (args, kwargs) in zip(compiled, inputs, strict=True):
                    module(*args, **kwargs)

            return time_events(run, lambda: [call.prepare() for call in calls], _WARM, count)
    except Exception as error:  # a compiler may raise anything, or be missing
        return first_line(error)


def capture(graph: Any, work: Callable[[T], object], prepare: Callable[[], T]) -> T:
    """Capture work in a CUDA graph on its own stream; after a failure, restore the stream and the generator.

    Args:
        graph: a new ``torch.cuda.CUDAGraph``.
        work: function to be captured, called with the result of ``prepare``.
        prepare: function that makes inputs, outside of the capture.

    Returns:
        The inputs of the captured work, which must live as long as the graph is replayed.
    """
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for _ in range(_WARM):
            work(prepare())
    given = prepare()
    cuda.synchronize()
    with warnings.catch_warnings(), _generator_copied(), cuda.stream(stream):
        warnings.filterwarnings(
            "ignore", message="The CUDA Graph is empty"
        )  # a failed capture, or a stage without work
        # Not torch.cuda.graph: if its capture fails to end, its stream remains the current one.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work(given)
        except BaseException:
            with suppress(Exception):
                graph.capture_end()
            raise
        graph.capture_end()
    cuda.synchronize()
    return given


@contextmanager
def _generator_copied() -> Iterator[None]:
    """Use a copy of the device's random generator while the block runs, since a failed capture leaves one unusable."""
    generator: Any = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


def _check_device() -> None:
    """Check that the device still runs kernels after a failed capture.

    Raises:
        Incomplete: it does not, and nothing more can be measured in this process.
    """
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise Incomplete(
            "the GPU fails after a stage was captured as a CUDA graph",
            where="--run cuda",
            got=first_line(error),
            fix="leave out the variants with CUDA graphs",
        ) from error
