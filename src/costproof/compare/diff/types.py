"""Define the records of a diff: the changes, the quantities of both sides, and the attribution of differences."""

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
    """A key whose value differs between base and head."""

    key: str
    """``text.topk``, ``workload.grid``, ``transformers``."""
    base: ConfigValue
    """``None`` also if this side has no such key."""
    head: ConfigValue


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one kind, such as configuration keys or libraries, in a fixed order of keys."""

    changed: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """Description of one side of a comparison."""

    target: str
    implementation: str
    workload: str
    what: str
    """The workload in words, without its name."""
    config_hash: str
    sources: tuple[str, ...]
    environment: dict[str, str]
    counted: str = ""
    """The conditions of the count: dtype, attention, truncation, unused keys, formats that are not counted."""
    notes: tuple[str, ...] = ()
    """Notes of the sources on how they counted and on work that they omitted."""

    @property
    def name(self) -> str:
        """Return ``TARGET at WORKLOAD``."""
        return f"{self.target} at {self.workload}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A cost in base and head, with the difference attributed to changes."""

    base: int | None
    head: int | None
    delta: int | None
    """Head minus base; ``None`` if either is unknown."""
    terms: tuple[Term, ...] = ()
    """Effects of single changes, then interactions of several; they sum to ``delta``. Causes without a key are last."""
    shares: dict[str, int] = field(default_factory=dict)
    """Change -> its share of ``delta``, with interactions split evenly; the shares sum to ``delta``."""


@dataclass(frozen=True, slots=True)
class StageDiff:
    """The totals of one stage on both sides."""

    id: str
    change: Fate
    totals: dict[Metric, Quantity]


@dataclass(frozen=True, slots=True)
class RowDiff:
    """A row that differs: one metric of a part of the model, summed over its layers and calls in a stage."""

    stage: str
    part: str
    """The role of the part, or its path with ``*`` for numbers."""
    kind: str
    metric: Metric
    base: int | None
    """0 if the side has no such row."""
    head: int | None
    delta: int | None
    change: Fate
    moved: str = ""
    """For a moved row, ``stage/part`` on the other side. It is listed at both places, so that stages sum up."""

    @property
    def id(self) -> str:
        """Return the name of the row: ``prefill/text.layer.mlp.gate:linear``."""
        return f"{self.stage}/{self.part}{':' + self.kind if self.kind else ''}"


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """The differences between the sides in one source."""

    totals: dict[Metric, Quantity]
    stages: tuple[StageDiff, ...]
    rows: tuple[RowDiff, ...]
    """Rows that differ."""
    same_rows: int


@dataclass(frozen=True, slots=True)
class Diff(NotebookRepr):
    """Result of a comparison: inputs of both sides, changes, and every difference in cost attributed to changes."""

    base: Side
    head: Side
    config: Changes
    workload: Changes
    modules: Changes
    """For targets without formulas: parts that are repeated more or less often, added, removed or replaced.

    For two families with formulas: parts, by role, that only one of them has.
    """
    implementation: Changes
    """The attention and expert kernels, and the classes that are counted."""
    libraries: Changes
    formulas: Changes
    """Versions of formulas by name, and the version of costproof."""
    conventions: Changes
    players: tuple[Player, ...]
    """The units that terms and shares refer to: keys, and groups of keys that cannot be separated, with the reason."""
    source: str
    """The source of the following numbers: the first with a change, or else the first of all."""
    totals: dict[Metric, Quantity]
    stages: tuple[StageDiff, ...]
    rows: tuple[RowDiff, ...]
    same_rows: int
    others: dict[str, SourceDiff]
    """The other sources of both sides; they repeat the same numbers wherever the sources agree."""
    not_comparable: dict[Metric, str]
    """Metrics that cannot be compared, because the sides count them differently or one lacks them, with the reason."""
    incomplete: tuple[str, ...]
    """Reasons why the comparison does not cover the whole cost."""
    complete: bool
    silent: tuple[str, ...] = ()
    """Sentences on metrics that a source gives on one side only, though both run one implementation: findings."""
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
        """Return the changes of all kinds, in the order of reports."""
        kinds = (
            *(self.config, self.workload, self.modules),
            *(self.conventions, self.libraries, self.implementation, self.formulas),
        )
        return tuple(c for kind in kinds for c in kind.changed)

    @property
    def by_source(self) -> dict[str, SourceDiff]:
        """Return the differences by source, :attr:`source` first."""
        return {self.source: SourceDiff(self.totals, self.stages, self.rows, self.same_rows), **self.others}

    @property
    def exit_code(self) -> int:
        """0; 1 if a source lacks a metric on one side; 3 if something could not be compared.

        A mere change is not an error: ``costproof gate`` judges changes.
        """
        if not self.complete:
            return EXIT_INCOMPLETE
        return EXIT_FINDINGS if self.silent else EXIT_OK

    def __repr__(self) -> str:
        """Return a summary in one line."""
        return f"Diff({self.base.name} -> {self.head.name}: {self.verdict}, {plural(len(self.rows), 'row')} changed)"


DIFF: Final = FileKind(name="costproof/diff", version=(1, 3), type=Diff)
