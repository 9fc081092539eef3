"""A stub of ``torch.cuda`` and of torch's profiler over tensors of the processor, with planted times on two clocks.

Tensors are those of the processor, so that models run and have values; every function of the package that asks where a
model is gets ``cuda``, and ``device="cuda"`` in a call of torch becomes ``cpu``. Every operator that reaches the
dispatcher advances the host clock by its planted Python, dispatch and launch, and enqueues its planted device time on
one queue. With the profiler on, each of its events takes :attr:`StubCuda.inflation` more, as on a real GPU.

The forms of events, names of runtime calls, errors of captures, and what a failed capture leaves behind are those of
torch 2.11 and 2.13 on an H100.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
LATENCY = 2_000
REPLAY = 5_000
"""Host nanoseconds of one replay of a graph."""
GAP, STARTED = 300, 4_000
"""Nanoseconds of the device after each kernel of a graph, and once for each replay."""


@dataclass(frozen=True)
class Planted:
    """Nanoseconds of one operator."""

    python: int = 300
    dispatch: int = 1_000
    launch: int = 2_000
    device: int = 3_000
    waits: bool = False
    """Whether the host waits for the device after its work."""
    kernels: int = 1


VIEW = Planted(dispatch=500, launch=0, device=0, kernels=0)
WAITING = frozenset({"_local_scalar_dense", "nonzero", "equal", "is_nonzero"})


def plant(func: Any) -> Planted:
    """Return the default times: a view enqueues nothing, some operators wait."""
    name = func._schema.name.split("::")[1]
    if name in WAITING:
        return Planted(waits=True)
    return VIEW if func.is_view or name in ("empty", "detach", "empty_like", "empty_strided") else Planted()


@dataclass
class StubEvent:
    """An event of the profiler, as ``kineto_results.events()`` has them."""

    title: str
    start: int
    end: int
    device: DeviceType = DeviceType.CPU
    id: int = 0
    link: int = 0
    user: bool = False

    _DEFAULTS: ClassVar[dict[str, Any]] = {
        "is_async": False, "is_hidden_event": False, "start_thread_id": 1, "end_thread_id": 1, "fwd_thread_id": 0,
        "overload_name": "", "shapes": (), "structured_input_shapes": (), "structured_input_strides": (),
        "concrete_inputs": (), "kwinputs": {}, "dtypes": (), "stack": (), "scope": 0, "sequence_nr": -1, "flops": 0,
        "device_index": 0, "device_resource_id": 7, "cuda_elapsed_us": -1, "privateuse1_elapsed_us": -1,
        "is_python_function": False, "activity_type": "", "metadata_json": "", "extra_meta": {}, "flow_id": 0,
        "flow_type": 0, "flow_start": False, "external_id": 0, "python_id": -1, "python_parent_id": -1,
        "python_module_id": -1, "nbytes": 0,
    }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        known = {
            "name": self.title, "start_ns": self.start, "end_ns": self.end, "duration_ns": self.end - self.start,
            "device_type": self.device, "correlation_id": self.id, "linked_correlation_id": self.link,
            "is_user_annotation": self.user, **self._DEFAULTS,
        }  # fmt: skip
        if name not in known:
            raise AttributeError(name)
        return lambda: known[name]


@dataclass
class StubCuda:
    """The two clocks and the queue of a device."""

    plant: Callable[[Any], Planted] = plant
    inflation: int = 0
    """Host nanoseconds that the profiler takes for each event of an operator or of the runtime."""
    blind: bool = False
    """Whether the profiler sees no kernels, as without the right to the counters of the driver."""
    host: int = 10**9
    free: int = 0
    """When the device has done all that is enqueued."""
    profile: StubProfile | None = None
    graph: StubGraph | None = None
    """The graph that is being captured."""
    current: Any = None
    generators: list[StubGenerator] = field(default_factory=list)
    asleep: list[int] = field(default_factory=list)
    ids: int = 0

    def now(self) -> int:
        """Return the host clock."""
        return self.host

    def enqueue(self, spent: int) -> tuple[int, int]:
        """Enqueue some work and return its start and end."""
        start = max(self.host + LATENCY, self.free)
        self.free = start + spent
        return start, self.free

    def synchronize(self, *_: Any) -> None:
        """Set the host to the device."""
        self.forbid()
        begin = self.host
        self.host = max(self.host, self.free)
        self.log("cudaDeviceSynchronize", begin)

    def forbid(self) -> None:
        """Raise the error of what must not happen during a capture."""
        if self.graph is not None:
            self.graph.broken = True
            raise RuntimeError(f"{NOT_PERMITTED}\nCUDA kernel errors might be asynchronously reported")

    def log(self, name: str, begin: int, **more: Any) -> None:
        """Add an event on the host to the profile, which ends now."""
        if self.profile is not None:
            self.ids += 1
            self.profile.log.append(StubEvent(name, begin, self.host, id=more.pop("id", self.ids), **more))

    def sleep(self, cycles: int) -> None:
        """Enqueue a kernel of so many cycles, of half a nanosecond."""
        self.asleep.append(cycles)
        self.host += 1_000
        self.enqueue(cycles // 2)

    def run(self, func: Any) -> None:
        """Advance both clocks by one operator."""
        times = self.plant(func)
        more = 0 if self.profile is None else self.inflation
        self.host += times.python
        begin, (self.ids, operator) = self.host, (self.ids + 1, self.ids + 1)
        self.host += times.dispatch + more
        for _ in range(times.kernels):
            launch, (self.ids, kernel) = self.host, (self.ids + 1, 10**6 + self.ids)
            self.host += times.launch // times.kernels + more
            self.log("cudaLaunchKernel", launch, id=kernel, link=operator)
            self._kernel(times.device // times.kernels, kernel, operator)
        if times.waits:
            self.forbid()
            wait = self.host
            self.host = max(self.host, self.free)
            self.log("cudaStreamSynchronize", wait, link=operator)
        self.log(func._schema.name, begin, id=operator)

    def _kernel(self, spent: int, launch: int, operator: int) -> None:
        if self.graph is not None:
            self.graph.kernels.append(spent)
            return
        start, end = self.enqueue(spent)
        if self.profile is not None and not self.blind:
            kernel = StubEvent("void kernel<float>(int)", start, end, DeviceType.CUDA, launch, operator)
            self.profile.log.append(kernel)


class StubProfile:
    """The profiler, whose events are read by torch's own code."""

    stub: ClassVar[StubCuda]

    def __init__(self, activities: Any = None, **_: Any) -> None:
        self.log: list[StubEvent] = []
        self.begin = self.stub.host

    def __enter__(self) -> StubProfile:
        self.begin = self.stub.host
        self.stub.profile = self
        return self

    def __exit__(self, *_: object) -> None:
        self.stub.profile = None

    @property
    def profiler(self) -> Any:
        """Return what has the raw events."""
        return SimpleNamespace(kineto_results=self)

    def events(self) -> Any:
        """Return the raw events; of the whole profile torch's events, which it makes of these."""
        return self.log

    def trace_start_ns(self) -> int:
        """Return the beginning."""
        return self.begin

    def export_chrome_trace(self, path: str) -> None:
        """Write a trace with the names only."""
        named = [{"name": e.title} for e in self.log]
        Path(path).write_text(json.dumps({"traceEvents": named, "host_name": "stub"}), encoding="utf-8")


class _TreeProfile(StubProfile):
    """The profiler as ``torch.profiler.profile``: its own events are those with a tree, the inner ones are raw."""

    @property
    def profiler(self) -> Any:
        return SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: self.log))

    def events(self) -> Any:
        from torch.autograd import profiler, profiler_util

        inner: Any = profiler.profile(use_cpu=True)
        inner.use_device = "cuda"
        event_list: Any = profiler_util.EventList
        found = event_list(inner._parse_kineto_results(_Results(self)), use_device="cuda")
        found._build_tree()
        return found


@dataclass
class _Results:
    profile: StubProfile

    def events(self) -> list[StubEvent]:
        return self.profile.log

    def trace_start_ns(self) -> int:
        return self.profile.begin


class StubRange:
    """``record_function`` and its fast form; a range is repeated on the device."""

    stub: ClassVar[StubCuda]
    user = True

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.begin = name, 0

    def __enter__(self) -> StubRange:
        self.begin = self.stub.host
        return self

    def __exit__(self, *_: object) -> None:
        self.stub.host += 0 if self.stub.profile is None else self.stub.inflation
        self.stub.log(self.name, self.begin, user=self.user)
        if self.user and self.stub.profile is not None:
            self.stub.profile.log.append(StubEvent(self.name, self.begin, self.stub.host, DeviceType.CUDA, user=True))


class StubFastRange(StubRange):
    """A range that is an operator to the profiler."""

    user = False


class StubTimer:
    """``torch.cuda.Event``."""

    stub: ClassVar[StubCuda]

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.at: int | None = None
        self.timed = enable_timing

    def record(self, *_: Any) -> None:
        """Enqueue work of length 0."""
        assert self.stub.graph is None
        self.at = self.stub.enqueue(0)[1]

    def query(self) -> bool:
        """Return whether the device has come to it."""
        return self.at is None or self.at <= self.stub.host

    def elapsed_time(self, end: StubTimer) -> float:
        """Return milliseconds."""
        assert self.timed
        assert end.timed
        if self.at is None or end.at is None or max(self.at, end.at) > self.stub.host:
            raise RuntimeError("CUDA error: device not ready")
        return (end.at - self.at) / 1e6


class StubStream:
    """``torch.cuda.Stream``."""

    def __init__(self, *_: Any) -> None:
        self.waited: list[Any] = []

    def wait_stream(self, other: Any) -> None:
        """Wait for another stream."""
        self.waited.append(other)


class StubGenerator:
    """A generator of the device, which a failed capture leaves in that capture."""

    def __init__(self, state: Any = None) -> None:
        self.state = state or SimpleNamespace(capturing=False)

    def graphsafe_get_state(self) -> StubGenerator:
        """Return a generator with the same state."""
        return StubGenerator(self.state)

    def clone_state(self) -> StubGenerator:
        """Return a generator with a copy of the state."""
        return StubGenerator(SimpleNamespace(capturing=self.state.capturing))

    def graphsafe_set_state(self, other: StubGenerator) -> None:
        """Use the state of another generator."""
        self.state = other.state


class StubGraph:
    """``torch.cuda.CUDAGraph``."""

    stub: ClassVar[StubCuda]

    def __init__(self) -> None:
        self.kernels: list[int] = []
        self.broken = False
        self.done = False
        self.pool: list[torch.Tensor] = []
        """Results of captured operators, whose memory belongs to the graph."""
        self.reads: list[Any] = []
        """Memory that captured operators read."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Capture what follows."""
        assert self.stub.current is not None, "CUDA graphs must be captured on a non-default stream."
        assert self.stub.current.waited
        self.stub.graph = self
        self.stub.generators[0].state.capturing = True

    def capture_end(self) -> None:
        """End the capture."""
        self.stub.graph = None
        if self.broken:
            raise RuntimeError(INVALIDATED)
        self.stub.generators[0].state.capturing = False
        self.done = True

    def replay(self) -> None:
        """Enqueue the kernels."""
        assert self.done
        assert not any(read.expired() for read in self.reads), "a replay reads memory that was freed"
        self.stub.host += REPLAY
        self.stub.enqueue(STARTED + sum(self.kernels) + GAP * len(self.kernels))

    def reset(self) -> None:
        """Forget the kernels."""
        self.kernels, self.pool, self.reads = [], [], []
        self.done = False


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Advances the clocks by every operator."""

    def __init__(self, stub: StubCuda) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stub = stub

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("prim", "profiler"):
            self._stub.run(func)
        result = func(*args, **(kwargs or {}))
        if self._stub.graph is not None:
            read = (tensor.untyped_storage() for tensor in _tensors((args, kwargs)))
            self._stub.graph.reads += [_weak(storage) for storage in read if storage.nbytes()]
            self._stub.graph.pool += _tensors(result)
        return result


_weak: Any = StorageWeakRef


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class _OnCpu(TorchFunctionMode):
    """Takes what is asked of the GPU to the processor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        return func(*map(_on_cpu, args), **{key: _on_cpu(value) for key, value in (kwargs or {}).items()})


def _generator(real: Any) -> type:
    def new(cls: type, device: Any = "cpu") -> Any:
        return real(_on_cpu(torch.device(device)))

    return type("Generator", (real,), {"__new__": new})


@contextmanager
def stub_cuda(patch: pytest.MonkeyPatch, stub: StubCuda | None = None) -> Iterator[StubCuda]:
    """Install the stub for a while."""
    stub = stub or StubCuda()
    for kind in (StubProfile, StubRange, StubTimer, StubGraph):
        patch.setattr(kind, "stub", stub, raising=False)
    stub.generators = [StubGenerator()]
    default = StubStream()

    @contextmanager
    def stream(one: Any) -> Iterator[None]:
        before, stub.current = stub.current, one
        try:
            yield
        finally:
            stub.current = before

    memory = 2**34
    for name, value in {
        "Event": StubTimer, "Stream": StubStream, "CUDAGraph": StubGraph, "stream": stream,
        "current_stream": lambda *_: stub.current or default, "synchronize": stub.synchronize, "_sleep": stub.sleep,
        "is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1,
        "is_tf32_supported": lambda: True,
        "get_device_name": lambda *_: "Stub GPU", "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: stub.graph is not None,
        "get_device_properties": lambda *_: SimpleNamespace(total_memory=memory, name="Stub GPU", L2_cache_size=2**10),
        "mem_get_info": lambda *_: (memory // 2, memory), "max_memory_allocated": lambda *_: 2**20,
        "reset_peak_memory_stats": lambda *_: None, "default_generators": stub.generators,
    }.items():  # fmt: skip
        patch.setattr(torch.cuda, name, value)
    patch.setattr("torch.profiler.profile", _TreeProfile)
    patch.setattr("torch.autograd.profiler.record_function", StubRange)
    patch.setattr("torch._C._profiler._RecordFunctionFast", StubFastRange)
    patch.setattr("torch.Generator", _generator(torch.Generator))
    patch.setattr("torch.compile", lambda module, **_: module)
    clock = SimpleNamespace(perf_counter_ns=stub.now)
    for name, module in list(sys.modules.items()):
        if name.startswith("costproof.tracers"):
            if hasattr(module, "timed_device"):
                patch.setattr(module, "timed_device", lambda model: "cuda")
            if hasattr(module, "time"):
                patch.setattr(module, "time", clock)
    with _OnCpu(), _Operators(stub):
        yield stub
