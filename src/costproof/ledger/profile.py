"""Describe measured times of a real run, by stage, module and operator.

Times are measurements, not counts: each has all its runs, and they are never compared exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median_high, median_low
from typing import Final

from costproof.ledger.metrics import Conventions
from costproof.ledger.run import RunOptions
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds of the same work in several runs, in the order of the runs."""

    runs: tuple[int, ...]

    @property
    def median(self) -> int:
        """Return the median; for an even number of runs the mean of the middle two, rounded down."""
        return (median_low(self.runs) + median_high(self.runs)) // 2


@dataclass(frozen=True, slots=True)
class StageTime:
    """Time of one stage in one forward, measured without a profiler."""

    run: str
    """Name of the forward: ``page``, ``prompt`` or ``step@P``."""
    stage: str
    invocation: str
    time: Timing


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """Time of one module in all profiled forwards, including the profiler's overhead.

    Shares therefore mean more than sums.
    """

    module: str
    """Module path as in the callgraph."""
    calls: int
    """Number of calls per profiled run."""
    cpu: Timing
    """CPU time including submodules."""
    cpu_self: Timing
    """CPU time without submodules."""
    device: Timing | None
    """Time of the GPU kernels including submodules; ``None`` on the CPU."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Time of one operator within the innermost module that ran it."""

    module: str
    operator: str
    calls: int
    """Number of calls per profiled run."""
    cpu_self: Timing
    device_self: Timing | None
    memory_bytes: int
    """Bytes allocated minus bytes freed on the device, in the last profiled run."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the tensors in the operator's first call."""


@dataclass(frozen=True, slots=True)
class EnqueuedCall:
    """One operator call of an eager run, with its times on host and device in nanoseconds.

    On a processor the work is done inside the call: ``device`` is 0, ``launches`` is 0, and ``dispatch`` has all of it.
    """

    operator: str
    module: str
    """Path of the innermost module that makes the call."""
    python: int
    """Host time from the previous operator's return to this call, spent in the Python code of modules."""
    dispatch: int
    """Host time inside the call, without launches and without waiting: dispatcher and allocator."""
    launch: int
    """Host time inside the CUDA runtime calls that enqueue the operator's kernels and copies."""
    launches: int
    """Number of kernels, copies and fills that the operator enqueues on the device."""
    device: int
    """Device time of these kernels, copies and fills, one after another in an eager run's queue."""
    synchronises: bool
    """Whether the host waits for the device before the call returns, as ``.item()`` and copies to the host do."""
    kernels: int | None = None
    """Device time of these kernels without gaps between them, by the profiler; ``None`` if not measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All measured times of a run, with device and clock."""

    device: str
    """Name of the device: ``cpu``, or the name of the GPU."""
    clock: str
    """Clock of the stage times: ``perf_counter`` or ``CUDA events``."""
    threads: int
    warm_up: int
    """Number of runs before the measured ones."""
    stages: tuple[StageTime, ...]
    modules: tuple[ModuleTime, ...]
    operators: tuple[OperatorTime, ...]
    peak_bytes: int | None = None
    """Peak memory of the GPU's allocator; ``None`` on the CPU."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Content of ``profile.json``."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    run: RunOptions
    measured: Measured
    flops: dict[str, int | None] = field(default_factory=dict)
    """Headline FLOPs from the trace of the same forwards, by ``run/stage/invocation``."""


PROFILE: Final = FileKind(name="costproof/profile", version=(2, 3), type=Profile)
