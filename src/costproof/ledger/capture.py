"""Define the capture, a file with all ledgers of one run; every report is a view of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Final

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.counter import CounterRecord
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.files import read_json
from costproof.ledger.mesh import Parallel
from costproof.ledger.metrics import NOT_COUNTED, Conventions, Metric
from costproof.ledger.node import Ledger
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.run import RunRecord
from costproof.ledger.schema import FileKind, from_data
from costproof.ledger.time_limits import time_limit
from costproof.ledger.workload import Invocation, ModuleKinds, TargetInfo, Workload


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Costs of all layers, extrapolated from the model's first layers.

    Each left-out layer costs as much as a counted one of its kind.
    """

    times: dict[str, tuple[int, ...]]
    """Number of layers that each counted layer represents, by path of the stack of layers."""
    checked: dict[str, int]
    """Number of layers in a second count that gives the same extrapolation, by path of the stack."""
    stages: dict[str, dict[Metric, int]]
    """Extrapolated costs by stage and metric, if both counts and all sources agree on the metric."""
    totals: dict[Metric, int]
    """Extrapolated costs over all stages, by metric."""
    left_out: dict[str, str]
    """Reasons why the costs of all layers are unknown, by metric."""
    not_run: str = ""
    """Reason why no meta-device run of all layers checked the extrapolation; empty if one did."""


@dataclass(frozen=True, slots=True)
class BlockPadding:
    """Padding of the block-wise cache of equal layers, in the call of a stage with the most blocks.

    A layer with a window gives back the blocks before its window when the next call begins. No prefix is shared.
    """

    stage: str
    layers: int
    """Number of equal layers."""
    window: int
    """Number of keys that a query of the layers attends to; 0 for all keys."""
    block: int
    """Tokens per block."""
    blocks: int
    """Number of blocks of all sequences in one layer."""
    tokens: int
    """Tokens of all sequences that the call reads or writes in one layer."""
    token_bytes: int
    """Bytes per token in one layer."""
    held_bytes: int
    """Bytes of all blocks: layers x blocks x block x token_bytes."""
    used_bytes: int
    """Bytes of cached tokens: layers x tokens x token_bytes."""
    waste_bytes: int
    """Bytes of the blocks that no token uses."""
    waste_share: str
    """Unused bytes as an exact fraction of the bytes of all blocks: ``55/15104``."""


@dataclass(frozen=True, slots=True)
class TokenPadding:
    """Padding of a call's tokens to the next size for which an engine has captured a CUDA graph.

    Linear layers, routers and experts run for all of them, attention and logits for real tokens. A call with more
    tokens than the largest size is not padded.
    """

    stage: str
    calls: int
    tokens: int
    """Tokens of one call without padding."""
    size: int
    """Tokens of one call including padding."""
    flops: int
    """FLOPs of matrix products of the padding in all calls; vector work is not included."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Memory and FLOPs that padding adds: the cache to whole blocks, the tokens to fixed sizes; in no metric."""

    cache: tuple[BlockPadding, ...] = ()
    """Padding of the cache by stage and kind of layer; empty for a cache without blocks."""
    batch: tuple[TokenPadding, ...] = ()
    """Padding of tokens by stage; empty if tokens are not padded."""

    def of_stage(self, stage: str) -> tuple[int, int]:
        """Return the bytes of the cache blocks of a stage, and how many of them no token uses."""
        rows = [row for row in self.cache if row.stage == stage]
        return sum(row.held_bytes for row in rows), sum(row.waste_bytes for row in rows)

    def problems(self) -> Iterator[BadInput]:
        """Yield an error for each row that contradicts itself."""
        for k, one in enumerate(self.batch):
            if not 0 < one.tokens <= one.size or (one.flops > 0) != (one.tokens < one.size):
                yield BadInput("the padding does not add up", where=f"$.padding.batch[{k}]", got=str(one)[:80])
        for k, row in enumerate(self.cache):
            held = row.layers * row.blocks * row.block * row.token_bytes
            used = row.layers * row.tokens * row.token_bytes
            expected = (held, used, held - used, str(Fraction(held - used, held or 1)))
            got = (row.held_bytes, row.used_bytes, row.waste_bytes, row.waste_share)
            if got != expected or held < used:
                where = f"$.padding.cache[{k}]"
                yield BadInput("the padding does not add up", where=where, expected=str(expected), got=str(got)[:80])


@dataclass(frozen=True, slots=True)
class FormulaDoc:
    """Title, derivation and source of a formula, for checking the formula by hand."""

    title: str
    derivation: str
    source: str


@dataclass(frozen=True, slots=True)
class SymbolDoc:
    """Typesetting and meaning of a symbol in the formulas."""

    latex: str
    meaning: str


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """Comparison of the two dynamic tracers, TorchLens and hooks, on calls and edges."""

    modules_compared: int
    edges_compared: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capture:
    """All ledgers of one run: a target at a workload, counted by several sources."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    """Versions of costproof, Python, and the packages that counted: torch, transformers, torchlens."""
    invocations: tuple[Invocation, ...]
    ledgers: tuple[Ledger, ...]
    formulas: dict[str, FormulaDoc] = field(default_factory=dict)
    symbols: dict[str, SymbolDoc] = field(default_factory=dict)
    callgraph: CallGraph | None = None
    trace_check: TraceCheck | None = None
    run: RunRecord | None = None
    """Options and traced runs of the dynamic source; ``None`` without that source."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Reasons why requested sources did not count, by source; they begin with :data:`FAILED` if the source tried."""
    judge: Ledger | None = None
    """FLOPs of the dynamic source's runs by torch's FlopCounterMode; ``None`` without the dynamic source."""
    counters: CounterRecord | None = None
    """Results of third-party counters; ``None`` unless requested."""
    peaks: tuple[CallPeaks, ...] = ()
    """Live activation peaks of every call of a stage; empty unless requested."""
    whole: WholeModel | None = None
    """Costs of all layers, if only the model's first layers were counted; otherwise ``None``."""
    modules: ModuleKinds = field(default_factory=dict)
    """Kinds of modules by path, for a target without formulas."""
    parallel: Parallel | None = None
    """Costs of every rank by the formulas, if the run has several devices; the ledgers are of one rank."""
    padding: Padding | None = None
    """Memory and FLOPs that only padding to blocks and sizes takes; ``None`` unless requested."""
    recorded: dict[str, tuple[Metric, ...]] = field(default_factory=dict)
    """Metrics that each source should give for this target by costproof's records, by source; or empty."""

    def __repr__(self) -> str:
        """Return a summary in one line, since a notebook must not print thousands of nodes."""
        return f"Capture({self.target.name} at {self.workload.name}: {', '.join(x.source for x in self.ledgers)})"

    @property
    def by_source(self) -> dict[str, Ledger]:
        """Return all ledgers by source, including those of third-party counters (``counter:NAME``)."""
        others = () if self.counters is None else (r.ledger() for r in self.counters.runs)
        return {x.source: x for x in (*others, *self.ledgers)}

    @property
    def source_list(self) -> str:
        """Return the sources for a message: ``sources analytic, static``."""
        return "sources " + (", ".join(x.source for x in self.ledgers) or "none")

    def ledger(self, source: str) -> Ledger:
        """Return the ledger of a source.

        Raises:
            BadInput: the capture has no ledger of this source.
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
        """Return the sources that tried to count and failed, with reasons; they make the verdict incomplete.

        So does a stage that a source tried to count, in whose place it has a note.
        """
        found = [f"{source}: {why}" for source, why in self.lacking.items() if why.startswith(FAILED)]
        for ledger in self.ledgers:
            gone = [f"{stage}{NOT_COVERED}{FAILED}" for stage in self.target.stages if stage not in ledger.stages]
            found += [f"{ledger.source}: {note}" for note in ledger.notes if note.startswith((*gone,))]
        return (*found,)

    @property
    def not_counted(self) -> tuple[tuple[str, str], ...]:
        """Return (subject, reason) of everything that no number includes, such as missing sources."""
        return (*NOT_COUNTED, *((f"{source} source", why) for source, why in sorted(self.lacking.items())))

    def values(self, invocation: Invocation | None) -> dict[str, int]:
        """Return the values of all symbols in an invocation; for ``None``, those of the configuration only."""
        return {**self.target.symbols, **(invocation.symbols if invocation else {})}


def without_uncalled_stages(
    info: TargetInfo, calls: Iterable[Invocation], ledgers: Iterable[Ledger]
) -> tuple[TargetInfo, tuple[Ledger, ...]]:
    """Return a target and its ledgers without the stages that the run never calls.

    A stage stays if it has modules of its own; decode, whose modules are those of the prefill, does not.
    """
    called, found = {call.stage for call in calls}, tuple(ledgers)
    modules: dict[str, set[str]] = {}
    for node in chain.from_iterable(ledger.nodes for ledger in found):
        modules.setdefault(node.stage, set()).add(node.module)
    elsewhere = set().union(*(modules.get(stage, set()) for stage in called))
    kept = tuple(s for s in info.stages if s in called or not modules.get(s, set()) <= elsewhere)
    if kept == info.stages:
        return info, found
    return replace(info, stages=kept), tuple(
        replace(
            ledger,
            nodes=tuple(node for node in ledger.nodes if node.stage in kept),
            stages=tuple(stage for stage in ledger.stages if stage in kept),
        )
        for ledger in found
    )


FAILED: Final = "failed: "
"""Prefix of the reason of a source that tried to count and failed; the verdict is then incomplete."""
NOT_COVERED: Final = " is not covered: "
"""Part of the note of a source on a stage that it does not count, between the stage and the reason.

The reason begins with :data:`FAILED` if the source tried; without it the target has no such stage for this source.
"""

GRADIENTS: Final = "the model takes gradients inside its forward, and an export or a trace has none"
"""Error message for a model that computes gradients in its forward."""
SECONDS: Final = 60
"""Processor seconds allowed for reading a capture; a model with 61 layers takes three."""

CAPTURE: Final = FileKind(name="costproof/capture", version=(4, 6), type=Capture, left_out=("parallel", "padding"))


def read_capture(path: Path) -> Capture:
    """Read ``capture.json``, and check that it is complete and consistent.

    Raises:
        BadInput: the file is not a capture of a supported version, or it contradicts itself.
    """
    return parse_capture(read_json(path, what="capture"), where=str(path))


def parse_capture(data: object, *, where: str) -> Capture:
    """Convert parsed JSON to a capture; see :func:`read_capture`."""
    from costproof.ledger.validation import validate_capture  # sympy is loaded where a file is read

    with time_limit(SECONDS, "the capture takes too long to read", where=where):
        capture = from_data(data, CAPTURE, where=where, make_again="costproof capture TARGET -o FILE")
        validate_capture(capture, where=where)
    return capture
