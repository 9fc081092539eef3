"""The peak of live activations, of every call of a stage: by its exported graph, and by the module as written.

Two quantities that are not the same. The *graph peak* frees a tensor after its last reader; the *eager peak* is what
the module holds while Python runs it, whose frames keep tensors that nothing reads any more. Neither is a sum over
nodes: it is the largest sum of what is alive at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import Conventions
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A piece of memory, by the tensor that it was made for; views share it."""

    name: str
    """Of an input: the argument. Else the operator without its namespace."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    """Of the memory, which may be more than the tensor's elements take."""
    operator: str
    """What made it; empty for an input."""
    module: str
    """Path of the module that made it, from the root of the model."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A stretch of an execution, by the first moment in it at which most bytes are alive."""

    event: int
    """How many pieces of memory were made or given back before."""
    bytes: int
    module: str
    """Path of the module that made the last piece; empty for the inputs."""


STRETCHES: Final = 120
"""Of an execution: enough for a picture of it, however many operators run."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The first moment at which most bytes are alive. Inputs and outputs count; parameters and buffers do not."""

    bytes: int
    operator: str
    """What runs then."""
    module: str
    alive: tuple[LiveTensor, ...]
    """In the order in which they were made; they sum to the peak."""
    events: int = 0
    """Pieces of memory that are made or given back in the whole execution; 0 in files of before."""
    curve: tuple[Moment, ...] = ()
    """The execution in at most :data:`STRETCHES` stretches of equally many events, in their order; the largest of
    their bytes is the peak."""


GapKind = Literal["held", "eager only", "graph only", "elsewhere"]
"""``held``: a tensor that nothing reads any more. ``eager only``: one that the module makes and its graph does not.
``graph only``: the other way round, or one that the graph still holds. ``elsewhere``: how much less the graph holds at
this moment than at its own peak."""


@dataclass(frozen=True, slots=True)
class GapPart:
    """A part of the eager peak less the graph peak."""

    kind: GapKind
    bytes: int
    """Signed; the parts of a call sum to its gap."""
    tensor: LiveTensor | None
    """``None`` for ``elsewhere``."""
    holders: tuple[str, ...] = ()
    """Variables that hold the tensor, outermost first: ``LlamaDecoderLayer.forward: residual``."""
    where: str = ""
    """Of ``elsewhere``: the module in which the graph has its peak."""


@dataclass(frozen=True, slots=True)
class CallPeaks:
    """One call of a stage, or of a part of it that is run alone; of decode steps the last."""

    stage: str
    invocation: str
    part: str
    graph: Peak | None
    eager: Peak | None
    gap: tuple[GapPart, ...] = ()
    notes: tuple[str, ...] = ()
    """Why a peak is not known, and what was taken for granted."""
    form: str = ""
    """The graph peak in symbols, which holds where the exported graph does; empty where it is not known."""
    given: str = ""
    """What the inputs have of it, which stand all the while."""
    holds: tuple[str, ...] = ()
    """Expressions of which none is negative where the exported graph holds."""

    @property
    def gap_bytes(self) -> int | None:
        """The eager peak less the graph peak."""
        return None if self.graph is None or self.eager is None else self.eager.bytes - self.graph.bytes

    @property
    def residual(self) -> int | None:
        """What of the gap no part explains."""
        return None if self.gap_bytes is None else self.gap_bytes - sum(p.bytes for p in self.gap)


@dataclass(frozen=True, slots=True)
class StagePeaks:
    """The largest peaks of a stage's calls; ``None``: one of them is not known."""

    stage: str
    graph_peak_bytes: int | None
    eager_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Peaks:
    """``peaks.json``."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    stages: tuple[StagePeaks, ...]
    calls: tuple[CallPeaks, ...]

    @property
    def exit_code(self) -> int:
        """0 if every peak is known, else 3."""
        known = all(c.graph is not None and c.eager is not None for c in self.calls)
        return EXIT_OK if known and self.calls else EXIT_INCOMPLETE

    def __repr__(self) -> str:
        """One line: a notebook must not print every tensor."""
        return f"Peaks({self.target.name} at {self.workload.name}: {plural(len(self.calls), 'call')})"


PEAKS: Final = FileKind(name="costproof/peaks", version=(1, 5), type=Peaks)


def by_stage(calls: Iterable[CallPeaks]) -> tuple[StagePeaks, ...]:
    """The stages that were called, each with the largest of its peaks."""
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
    """The largest; ``None`` if one is not known, or there is none."""
    every = list(sizes)
    return max((s for s in every if s is not None), default=None) if None not in every else None
