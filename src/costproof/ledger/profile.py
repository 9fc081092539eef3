"""Measured times of one real run: what a stage, a module and an operator took, and how far the runs differ.

Times are measurements, never counts: each stands with all its runs, and nothing compares them exactly.
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
        """The middle one; of an even number the mean of the two in the middle, rounded down."""
        return (median_low(self.runs) + median_high(self.runs)) // 2


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage in one forward, measured without a profiler."""

    run: str
    """``page``, ``prompt`` or ``step@P``."""
    stage: str
    invocation: str
    time: Timing


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """One module in all profiled forwards together. The profiler itself takes time; shares mean more than sums."""

    module: str
    """As in the callgraph."""
    calls: int
    """Per profiled run."""
    cpu: Timing
    """With its children."""
    cpu_self: Timing
    """Without its children."""
    device: Timing | None
    """Kernels on the GPU, with its children; ``None`` on the CPU."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator in the innermost module that ran it."""

    module: str
    operator: str
    calls: int
    """Per profiled run."""
    cpu_self: Timing
    device_self: Timing | None
    memory_bytes: int
    """What it allocated less what it freed on the device of the run, in the last profiled run."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors in its first call."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All times of a run."""

    device: str
    """``cpu``, or the name of the GPU."""
    clock: str
    """What measured the stages: ``perf_counter`` or ``CUDA events``."""
    threads: int
    warm_up: int
    """Runs before the measured ones."""
    stages: tuple[StageTime, ...]
    modules: tuple[ModuleTime, ...]
    operators: tuple[OperatorTime, ...]
    peak_bytes: int | None = None
    """Most memory that the GPU's allocator held; ``None`` on the CPU."""


@dataclass(frozen=True, slots=True)
class Profile:
    """``profile.json``: the header of every file, then the times."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    run: RunOptions
    measured: Measured
    flops: dict[str, int | None] = field(default_factory=dict)
    """Headline FLOPs as ``run/stage/invocation``, from the trace of the same forwards."""


PROFILE: Final = FileKind(name="costproof/profile", version=(2, 3), type=Profile)
