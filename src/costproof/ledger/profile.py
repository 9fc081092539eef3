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
    """Nanoseconds of the same work in several runs, in order."""

    runs: tuple[int, ...]

    @property
    def median(self) -> int:
        """Return the median; for an even number of runs the mean of the middle two, rounded down."""
        return (median_low(self.runs) + median_high(self.runs)) // 2


@dataclass(frozen=True, slots=True)
class StageTime:
    """Time of one stage in one forward, measured without a profiler."""

    run: str
    """``page``, ``prompt`` or ``step@P``."""
    stage: str
    invocation: str
    time: Timing


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """Time of one module in all profiled forwards. The profiler itself takes time; shares mean more than sums."""

    module: str
    """Path as in the callgraph."""
    calls: int
    """Calls per profiled run."""
    cpu: Timing
    """CPU time including children."""
    cpu_self: Timing
    """CPU time without children."""
    device: Timing | None
    """Time of kernels on the GPU including children; ``None`` on the CPU."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Time of one operator in the innermost module that ran it."""

    module: str
    operator: str
    calls: int
    """Calls per profiled run."""
    cpu_self: Timing
    device_self: Timing | None
    memory_bytes: int
    """Bytes allocated minus bytes freed on the device, in the last profiled run."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the tensors in its first call."""


@dataclass(frozen=True, slots=True)
class EnqueuedCall:
    """One operator call on the host and device clocks of an eager run, in nanoseconds.

    On a processor the work is done inside the call: ``device`` is 0, ``launches`` is 0, and ``dispatch`` has all of it.
    """

    operator: str
    module: str
    """Path of the innermost module that makes the call."""
    python: int
    """Host time since the operator before it returned: the Python of modules."""
    dispatch: int
    """Host time inside the call, without launches and without waiting: dispatcher and allocator."""
    launch: int
    """Host time inside the runtime's calls that enqueue its kernels and copies."""
    launches: int
    """Kernels, copies and fills that it enqueues on the device."""
    device: int
    """Device time of these, one after another in the queue of an eager run."""
    synchronises: bool
    """Whether the host waits for the device before the call returns, as ``.item()`` and copies to the host do."""
    kernels: int | None = None
    """Device time of these without the gaps between them, as the profiler shows it; ``None`` if not measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All measured times of a run."""

    device: str
    """``cpu``, or the name of the GPU."""
    clock: str
    """Clock of the stage times: ``perf_counter`` or ``CUDA events``."""
    threads: int
    warm_up: int
    """Runs before the measured ones."""
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
    """``run/stage/invocation`` -> headline FLOPs from the trace of the same forwards."""


PROFILE: Final = FileKind(name="costproof/profile", version=(2, 3), type=Profile)
