"""Describe a proof about a target as plain data: its pieces of work, and its coverage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from costproof.compare.proof.certificate import Settings
from costproof.configs.config import Config
from costproof.ledger.metrics import Metric
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, Setting, WithFormulas


class Provable(WithFormulas, Exportable, Protocol):
    """Protocol of targets with formulas and exports, which a proof compares."""


T = TypeVar("T", bound=Provable, covariant=True)


@dataclass(frozen=True, slots=True)
class SymbolicRun:
    """A run whose formulas are one summand of an identity."""

    workload: Workload
    """Workload at example sizes, which select the branches of the formulas."""
    stage: str
    sizes: Mapping[str, str]
    """Expression of each formula symbol in the identity's symbols, by symbol: ``SC_1`` may be ``B*P + C``."""


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """Two sums of formulas to be shown equal in every module; at least one of them is of a batch of unequal rows."""

    left: tuple[SymbolicRun, ...]
    right: tuple[SymbolicRun, ...]
    metrics: tuple[Metric, ...]
    example: Mapping[str, int]
    """Values, at the example sizes, of the identity's symbols, with ``b``; of all symbols for a one-by-one count."""
    pairs: tuple[str, ...] = ()
    """Kept scores per head that the right side has in addition, for each layer."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """Unit of a proof: the exports of a target for one run, compared with its formulas in any process."""

    id: str
    """Name of the piece in the progress file: ``identity: page``."""
    phase: Literal["identities", "sizes", "workloads", "draws", "runs", "peaks", "rows", "ranks"]
    """Kind of the piece. An identity that holds is a claim of the certificate; pieces of other kinds are only counted.
    Workloads are exported without symbols and compared as integers. Runs are not exported: every decode step is run and
    counted by FlopCounterMode. Of peaks, the live peak of each graph is compared. Of rows, formulas are compared with
    each other, or with pairs of a query and a key that were counted one by one; those of an identity are claims. Of
    ranks, the formulas of all are summed, and facts that sources share are recounted by separate code."""
    target: T
    workload: Workload
    stages: tuple[str, ...] = ()
    """Stages whose exports are compared; empty for all."""
    sizes: Mapping[str, int] | None = None
    """For a random configuration, the symbol values at which exports and formulas are compared as integers."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Number of which the values of a symbol are multiples, by symbol."""
    asked: Mapping[int, tuple[Mapping[str, int], ...]] = field(default_factory=dict)
    """Symbol values at which the guards of the exports are evaluated, by value of a symbolic size."""
    identity: RowIdentity | None = None
    """For a piece about rows, the identity to check."""


def not_drawn(config: Config | type[Config]) -> dict[str, str]:
    """Return the configuration fields, by dotted path, that no random draw of a proof varies, with the reasons."""
    parts = {f.name: part for f in fields(config) if isinstance(part := getattr(config, f.name), Config)}
    inside = {f"{name}.{path}": why for name, part in parts.items() for path, why in not_drawn(part).items()}
    return {**inside, **config.not_drawn}


def reasons(config: Config | type[Config]) -> tuple[str, ...]:
    """Return the fields of :func:`not_drawn` as sentences for a certificate, one per reason."""
    named: dict[str, list[str]] = {}
    for path, why in not_drawn(config).items():
        named.setdefault(why, []).append(path)
    return tuple(f"{', '.join(paths)}: {why}" for why, paths in named.items())


@dataclass(frozen=True, slots=True)
class Proof:
    """Pieces of a proof, and the ranges that it covers."""

    pieces: tuple[Piece[Provable], ...]
    settings: Settings
    usual: Workload
    """Workload whose conventions the certificate states."""
    ranges: Mapping[str, int]
    """Number of values of each drawn parameter, by parameter."""
    independent: Mapping[str, str]
    """Symbols as expressions in drawn parameters, as for :func:`costproof.compare.proof.certificate.degrees`."""
    choices: Mapping[str, int]
    """Number of draws with a feature, by feature; like the next four fields, a part of the certificate's coverage."""
    not_varied: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    tried_sizes: tuple[int, ...] = ()
    workloads: tuple[str, ...] = ()
    sized: tuple[str, ...] = ()
    """Stages with a size that is concrete in some graphs and symbolic in others."""
    not_claimed: tuple[str, ...] = ()


@runtime_checkable
class WithProof(Provable, Protocol):
    """Protocol of targets that define a proof about themselves."""

    def proof(self, samples: int, seed: int, **chosen: Any) -> Proof:
        """Return the proof: its pieces, and its coverage.

        Args:
            samples: number of random configurations to draw, if the family draws any.
            chosen: settings listed by ``proof_settings`` of the factory; omitted ones have their defaults.

        Raises:
            BadInput: settings for which there is no proof.
        """


@runtime_checkable
class Proves(Protocol):
    """Protocol of target factories that support making and repeating proofs."""

    def proof_settings(self) -> tuple[Setting, ...]:
        """Return the settings of a proof, other than the number of draws and their seed."""

    def from_normalised(self, text: str) -> WithProof:
        """Return the target with a normalised configuration, as certificates contain it.

        Args:
            text: JSON, as the target wrote it.

        Raises:
            ValueError, KeyError, TypeError: the text is not a normalised configuration.
        """
