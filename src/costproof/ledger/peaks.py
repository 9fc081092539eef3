"""Describe the live activation peak of every call of a stage, in the graph and in the eager module.

The two peaks differ. The *graph peak* frees a tensor after its last reader. The *eager peak* is what the module holds
while Python runs it, whose frames keep tensors that nothing reads anymore. Neither is a sum over nodes: each is the
largest sum of live bytes at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import Conventions
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A memory allocation that is live at a peak, described by the tensor for which it was made."""

    name: str
    """Argument name of an input; otherwise the operator without its namespace."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    """Bytes of the allocation, which may exceed those of the tensor's elements."""
    operator: str
    """Operator that allocated the tensor; empty for an input."""
    module: str
    """Path of the module that allocated the tensor, from the root of the model."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment with the most live bytes within one section of a run."""

    event: int
    """Number of allocations and releases before this moment."""
    bytes: int
    module: str
    """Path of the module with the last allocation; empty for the inputs."""


STRETCHES: Final = 120
"""Maximum number of sections of a memory curve, enough for a picture of any execution."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The first moment of a call with the most live bytes, without parameters and buffers."""

    bytes: int
    operator: str
    """Operator that runs at the moment of the peak."""
    module: str
    alive: tuple[LiveTensor, ...]
    """Live tensors in order of allocation, whose bytes sum to the peak."""
    events: int = 0
    """Number of allocations and releases in the whole execution."""
    curve: tuple[Moment, ...] = ()
    """Highest moments of at most :data:`STRETCHES` sections with equally many events; their maximum is the peak."""


GapKind = Literal["held", "eager only", "graph only", "elsewhere"]
"""Reason for a part of the difference between eager and graph peak.

``held``: a tensor that nothing reads anymore. ``eager only``: a tensor that the module creates and its graph does not.
``graph only``: the reverse, or a tensor that only the graph still holds. ``elsewhere``: how much less the graph holds
at this moment than at its own peak.
"""


@dataclass(frozen=True, slots=True)
class GapPart:
    """One summand of the difference between eager and graph peak."""

    kind: GapKind
    bytes: int
    """Signed bytes; the summands of a call sum to its difference."""
    tensor: LiveTensor | None
    """The tensor that causes it; ``None`` for ``elsewhere``."""
    holders: tuple[str, ...] = ()
    """Variables that keep the tensor alive, outermost first: ``LlamaDecoderLayer.forward: residual``."""
    where: str = ""
    """For ``elsewhere``, the module in which the graph has its peak."""


@dataclass(frozen=True, slots=True)
class CallPeaks:
    """Live activation peaks of one call of a stage, or of an exported part of it; for decode, of the last step."""

    stage: str
    invocation: str
    part: str
    graph: Peak | None
    eager: Peak | None
    gap: tuple[GapPart, ...] = ()
    notes: tuple[str, ...] = ()
    """Reasons for an unknown peak, and assumptions."""
    form: str = ""
    """Graph peak in symbols, valid wherever the exported graph is valid; empty if unknown."""
    given: str = ""
    """Contribution of inputs to the graph peak in symbols; inputs are live throughout."""
    holds: tuple[str, ...] = ()
    """Path conditions of the exported graph, as expressions that are nonnegative where the graph is valid."""
    formula: int | None = None
    """Graph peak by the target's formula; ``None`` without a formula."""
    gathered_bytes: int | None = None
    """Upper bound of the bytes of all-gathered parameters and their buffers, not in the peak; ``None`` without any."""

    @property
    def gap_bytes(self) -> int | None:
        """Return the eager peak minus the graph peak."""
        return None if self.graph is None or self.eager is None else self.eager.bytes - self.graph.bytes

    @property
    def residual(self) -> int | None:
        """Return the bytes of the difference between eager and graph peak that :attr:`gap` does not explain."""
        return None if self.gap_bytes is None else self.gap_bytes - sum(p.bytes for p in self.gap)


@dataclass(frozen=True, slots=True)
class StagePeaks:
    """Largest live activation peaks over a stage's calls; ``None`` if any peak is unknown."""

    stage: str
    graph_peak_bytes: int | None
    eager_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Peaks:
    """Content of ``peaks.json``."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    stages: tuple[StagePeaks, ...]
    calls: tuple[CallPeaks, ...]

    @property
    def exit_code(self) -> int:
        """Return 1 if a formula differs from its graph, else 0 if every peak is known and 3 if not."""
        if any(c.formula not in (None, c.graph.bytes) for c in self.calls if c.graph is not None):
            return EXIT_FINDINGS
        known = all(c.graph is not None and c.eager is not None for c in self.calls)
        return EXIT_OK if known and self.calls else EXIT_INCOMPLETE

    def __repr__(self) -> str:
        """Return a summary in one line, since a notebook must not print every tensor."""
        return f"Peaks({self.target.name} at {self.workload.name}: {plural(len(self.calls), 'call')})"


PEAKS: Final = FileKind(name="costproof/peaks", version=(1, 7), type=Peaks)


def by_stage(calls: Iterable[CallPeaks]) -> tuple[StagePeaks, ...]:
    """Return the largest peaks over the calls of each stage."""
    of: dict[str, list[CallPeaks]] = {}
    for call in calls:
        of.setdefault(call.stage, []).append(call)
    return tuple(
        StagePeaks(stage, largest(map(_bytes, (c.graph for c in its))), largest(map(_bytes, (c.eager for c in its))))
        for stage, its in of.items()
    )


def _bytes(peak: Peak | None) -> int | None:
    return None if peak is None else peak.bytes


def largest(sizes: Iterable[int | None]) -> int | None:
    """Return the maximum of some numbers; ``None`` if any is unknown, or without numbers."""
    every = list(sizes)
    return max((s for s in every if s is not None), default=None) if None not in every else None
