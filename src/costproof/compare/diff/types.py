"""A diff as data: what changed, what that did to every quantity, and which change did it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from costproof.compare.diff.attribution import Player, Term
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import Metric
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.plural import plural
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import ConfigValue

LIBRARIES: Final = "libraries"
IMPLEMENTATION: Final = "implementation"
FORMULAS: Final = "formulas"
CODE: Final = "code"
UNNAMED: Final = "not attributed"
Fate = Literal["same", "changed", "added", "removed", "moved"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was."""

    key: str
    """``text.topk``, ``workload.grid``, ``transformers``."""
    base: ConfigValue
    """``None`` is also what a side has that knows no such key."""
    head: ConfigValue


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed of one kind, by key."""

    changed: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared."""

    target: str
    implementation: str
    workload: str
    what: str
    """The workload in words, without its name."""
    config_hash: str
    sources: tuple[str, ...]
    environment: dict[str, str]
    counted: str = ""
    """What its numbers leave out: dtype, attention, cut, keys that were not used, a format that is not counted."""
    notes: tuple[str, ...] = ()
    """Notes of its sources on how they counted and on what they left out."""

    @property
    def name(self) -> str:
        """``TARGET at WORKLOAD``."""
        return f"{self.target} at {self.workload}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number on both sides."""

    base: int | None
    head: int | None
    delta: int | None
    """Head minus base; ``None`` as soon as one is unknown."""
    terms: tuple[Term, ...] = ()
    """What each change does alone, and what changes do jointly; they add up to ``delta``; what is not a key is last."""
    shares: dict[str, int] = field(default_factory=dict)
    """Change -> its part of ``delta``, joint terms split evenly; they add up to ``delta``."""


@dataclass(frozen=True, slots=True)
class StageDiff:
    """One stage on both sides."""

    id: str
    change: Fate
    totals: dict[Metric, Quantity]


@dataclass(frozen=True, slots=True)
class RowDiff:
    """One row that is not what it was: a part of the model, all its layers and calls in a stage together."""

    stage: str
    part: str
    """Its role, or its path with ``*`` for numbers."""
    kind: str
    metric: Metric
    base: int | None
    """0 where a side has no such row."""
    head: int | None
    delta: int | None
    change: Fate
    moved: str = ""
    """Of a row that moved, ``stage/part`` on the other side. It stands at both places, so that stages add up."""

    @property
    def id(self) -> str:
        """``prefill/text.layer.mlp.gate:linear``."""
        return f"{self.stage}/{self.part}{':' + self.kind if self.kind else ''}"


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """What one source says."""

    totals: dict[Metric, Quantity]
    stages: tuple[StageDiff, ...]
    rows: tuple[RowDiff, ...]
    """Those that are not the same."""
    same_rows: int


@dataclass(frozen=True, slots=True)
class Diff(NotebookRepr):
    """What a change does to the cost."""

    base: Side
    head: Side
    config: Changes
    workload: Changes
    modules: Changes
    """Of targets without formulas: parts that are repeated more or less often, new, gone, or others.

    Of two families with formulas: parts, by role, that one of them has.
    """
    implementation: Changes
    """The attention and expert kernels, and the classes that are counted."""
    libraries: Changes
    formulas: Changes
    """Formula -> its version, and costproof's own."""
    conventions: Changes
    players: tuple[Player, ...]
    """What terms and shares name: keys, and keys that are not told apart, with the reason."""
    source: str
    """The source that the numbers are of: the first that has a change, or the first of all."""
    totals: dict[Metric, Quantity]
    stages: tuple[StageDiff, ...]
    rows: tuple[RowDiff, ...]
    same_rows: int
    others: dict[str, SourceDiff]
    """Further sources that both sides have; the same numbers again wherever the sources agree."""
    not_comparable: dict[Metric, str]
    """Metrics that the two sides count differently, with the reason."""
    incomplete: tuple[str, ...]
    """Why not all of the cost is compared."""
    complete: bool
    silent: tuple[str, ...] = ()
    """Metrics that a source gives on one side only, though both run the same implementation: findings."""
    format_version: Literal["1.2"] = "1.2"

    @property
    def verdict(self) -> str:
        """``incomplete``, ``silent``, ``changed`` or ``same``."""
        if not self.complete:
            return "incomplete"
        if self.silent:
            return "silent"
        return "changed" if self.rows or any(other.rows for other in self.others.values()) else "same"

    @property
    def changes(self) -> tuple[Change, ...]:
        """All that changed, in the order of reports."""
        kinds = (
            *(self.config, self.workload, self.modules),
            *(self.conventions, self.libraries, self.implementation, self.formulas),
        )
        return tuple(c for kind in kinds for c in kind.changed)

    @property
    def by_source(self) -> dict[str, SourceDiff]:
        """What every source says, that of :attr:`source` first."""
        return {self.source: SourceDiff(self.totals, self.stages, self.rows, self.same_rows), **self.others}

    @property
    def exit_code(self) -> int:
        """0, 1 where a source is silent on one side, or 3 where something could not be compared.

        A change alone is not an error, a gate judges it.
        """
        if not self.complete:
            return EXIT_INCOMPLETE
        return EXIT_FINDINGS if self.silent else EXIT_OK

    def __repr__(self) -> str:
        """One line."""
        return f"Diff({self.base.name} -> {self.head.name}: {self.verdict}, {plural(len(self.rows), 'row')} changed)"


DIFF: Final = FileKind(name="costproof/diff", version=(1, 3), type=Diff)
