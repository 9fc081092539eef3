"""Define the records of a diff: changes, quantities of both sides, and attributed differences."""

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
    """Name of the key: ``text.topk``, ``workload.grid``, ``transformers``."""
    base: ConfigValue
    """Value in the base; ``None`` also if the base has no such key."""
    head: ConfigValue


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one kind, such as configuration keys or libraries, in a fixed order of keys."""

    changed: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """Description of one side of a diff."""

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
    """Notes of the sources on their counts and on work that they omitted."""

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
    """Effects of single changes, then interactions of several; they sum to ``delta``.

    A cause that is not a key comes last.
    """
    shares: dict[str, int] = field(default_factory=dict)
    """Share of ``delta`` by change, with interactions split evenly; the shares sum to ``delta``."""


@dataclass(frozen=True, slots=True)
class StageDiff:
    """The totals of one stage on both sides."""

    id: str
    change: Fate
    totals: dict[Metric, Quantity]


@dataclass(frozen=True, slots=True)
class RowDiff:
    """A row that differs: one metric of a model part in a stage, summed over layers and calls."""

    stage: str
    part: str
    """Role of the model part, or its module path with ``*`` for numbers."""
    kind: str
    metric: Metric
    base: int | None
    """Value in the base; 0 if the base has no such row."""
    head: int | None
    delta: int | None
    change: Fate
    moved: str = ""
    """``stage/part`` on the other side, for a row that moved.

    The row is listed at both places, so that stages sum up.
    """

    @property
    def id(self) -> str:
        """Return the name of the row: ``prefill/text.layer.mlp.gate:linear``."""
        return f"{self.stage}/{self.part}{':' + self.kind if self.kind else ''}"


@dataclass(frozen=True, slots=True)
class SourceDiff:
    """The differences between two sides in the counts of one source."""

    totals: dict[Metric, Quantity]
    stages: tuple[StageDiff, ...]
    rows: tuple[RowDiff, ...]
    """Cost rows that differ."""
    same_rows: int


@dataclass(frozen=True, slots=True)
class Diff(NotebookRepr):
    """Result of a diff: inputs of both sides, changes, and every cost difference attributed to changes."""

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
    """Changed versions of formulas, by name, and of costproof."""
    conventions: Changes
    players: tuple[Player, ...]
    """The changes to which differences are attributed: keys, and groups of inseparable keys with the reason."""
    source: str
    """The source of the numbers below: the first source with a changed number, or else the first of all."""
    totals: dict[Metric, Quantity]
    stages: tuple[StageDiff, ...]
    rows: tuple[RowDiff, ...]
    same_rows: int
    others: dict[str, SourceDiff]
    """The differences in all other sources, equal to these where the sources agree."""
    not_comparable: dict[Metric, str]
    """Reasons why metrics cannot be compared, by metric: they are counted differently, or one side lacks them."""
    incomplete: tuple[str, ...]
    """Reasons why the comparison does not cover the whole cost."""
    complete: bool
    silent: tuple[str, ...] = ()
    """Sentences on metrics that a source has on one side only although both run one implementation, as findings."""
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
