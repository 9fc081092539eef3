"""Define the capture, a file with all ledgers of one run; every report is a view of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.counter import CounterRecord
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.files import read_json
from costproof.ledger.metrics import NOT_COUNTED, Conventions, Metric
from costproof.ledger.node import Ledger
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.run import RunRecord
from costproof.ledger.schema import FileKind, from_data
from costproof.ledger.time_limits import time_limit
from costproof.ledger.workload import Invocation, ModuleKinds, TargetInfo, Workload


@dataclass(frozen=True, slots=True)
class WholeModel:
    """What the whole model costs if every layer that was left out costs what the kept one of its kind does."""

    times: dict[str, tuple[int, ...]]
    """Path of a stack of layers -> for how many layers each kept one stands."""
    checked: dict[str, int]
    """The same -> layers of the second count, which leads to the same numbers."""
    stages: dict[str, dict[Metric, int]]
    """Stage -> metric -> cost, of the metrics for which both counts, and all sources, say the same."""
    totals: dict[Metric, int]
    """Over all stages."""
    left_out: dict[str, str]
    """Metric -> why the whole model's is not known."""
    not_run: str = ""
    """Why no run of all layers on shapes was compared with this; empty where one was."""


@dataclass(frozen=True, slots=True)
class FormulaDoc:
    """What a person needs to check a formula by hand."""

    title: str
    derivation: str
    source: str


@dataclass(frozen=True, slots=True)
class SymbolDoc:
    """A symbol of the formulas: how it is typeset, what it means."""

    latex: str
    meaning: str


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """What the two dynamic tracers, TorchLens and hooks, say about calls and edges."""

    modules_compared: int
    edges_compared: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capture:
    """One target at one workload, counted by several sources."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    """Versions of what counted: costproof, torch, transformers, torchlens, python."""
    invocations: tuple[Invocation, ...]
    ledgers: tuple[Ledger, ...]
    formulas: dict[str, FormulaDoc] = field(default_factory=dict)
    symbols: dict[str, SymbolDoc] = field(default_factory=dict)
    callgraph: CallGraph | None = None
    trace_check: TraceCheck | None = None
    run: RunRecord | None = None
    """How the dynamic source ran; ``None`` in captures without it."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Sources that were asked for and did not count, with the reason; :data:`FAILED` begins it where a source tried."""
    judge: Ledger | None = None
    """FLOPs of the dynamic source's runs by torch's own formulas, at the dispatcher; ``None`` without that source."""
    counters: CounterRecord | None = None
    """What third-party counters say; ``None`` unless they were asked for."""
    peaks: tuple[CallPeaks, ...] = ()
    """Peaks of live activations of every call of a stage; empty unless they were asked for."""
    whole: WholeModel | None = None
    """What the whole model costs where its first layers alone were counted; ``None``: it was not cut."""
    modules: ModuleKinds = field(default_factory=dict)
    """Of a target without formulas, its modules by place."""
    recorded: dict[str, tuple[Metric, ...]] = field(default_factory=dict)
    """Source -> the metrics that it is on record to give for this target in such a run; empty: there is no record."""

    def __repr__(self) -> str:
        """One line: a notebook must not print thousands of nodes."""
        return f"Capture({self.target.name} at {self.workload.name}: {', '.join(x.source for x in self.ledgers)})"

    @property
    def by_source(self) -> dict[str, Ledger]:
        """All ledgers by source, those of third-party counters (``counter:NAME``) among them."""
        others = () if self.counters is None else (r.ledger() for r in self.counters.runs)
        return {x.source: x for x in (*others, *self.ledgers)}

    def ledger(self, source: str) -> Ledger:
        """The ledger of a source.

        Raises:
            BadInput: the capture has none of it.
        """
        known = self.by_source
        if source not in known:
            raise BadInput(
                "the capture has no ledger of this source",
                where=source,
                expected="one of " + ", ".join(known),
                fix=did_you_mean(source, known) or f"count with sources={source!r} among others",
            )
        return known[source]

    @property
    def failed(self) -> tuple[str, ...]:
        """Sources that tried to count and could not, each with its reason: the verdict is incomplete."""
        return tuple(f"{source}: {why}" for source, why in self.lacking.items() if why.startswith(FAILED))

    @property
    def not_counted(self) -> tuple[tuple[str, str], ...]:
        """What no number here contains, with the reason: work outside a run, and sources that the target lacks."""
        return (*NOT_COUNTED, *((f"{source} source", why) for source, why in sorted(self.lacking.items())))

    def values(self, invocation: Invocation | None) -> dict[str, int]:
        """Values of all symbols in an invocation (``None``: of the configuration's alone)."""
        return {**self.target.symbols, **(invocation.symbols if invocation else {})}


FAILED: Final = "failed: "
"""Begins the reason of a source that tried to count and could not: then the verdict is incomplete."""

SECONDS: Final = 60
"""Of the processor, to read one; that of a model with 61 layers takes three."""

CAPTURE: Final = FileKind(name="costproof/capture", version=(4, 0), type=Capture)


def read_capture(path: Path) -> Capture:
    """Read ``capture.json``, and check that it is whole and that its own arithmetic holds.

    Raises:
        BadInput: the file is not a capture of a version that this costproof reads, or contradicts itself.
    """
    return parse_capture(read_json(path, what="capture"), where=str(path))


def parse_capture(data: object, *, where: str) -> Capture:
    """:func:`read_capture` of a file that is already read."""
    from costproof.ledger.validation import validate_capture  # sympy is loaded where a file is read

    with time_limit(SECONDS, "the capture takes too long to read", where=where):
        capture = from_data(data, CAPTURE, where=where, make_again="costproof capture TARGET -o FILE")
        validate_capture(capture, where=where)
    return capture
