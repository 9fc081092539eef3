"""What targets with a configuration have in common: the target as data, another number of layers, refusals."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.metrics import Conventions
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Dtype, TargetInfo, Workload
from costproof.models.changing import changes, keys_of, with_keys
from costproof.models.checkpoint import PLAIN, Stored


class Config(ABC):
    """A frozen dataclass of everything that decides a cost. Its defaults are the published configuration."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]
    waived: tuple[tuple[str, str], ...]
    """Keys that were read and deliberately not used, with the reason."""
    not_drawn: ClassVar[Mapping[str, str]] = {}
    """Fields that no draw of a proof varies, those of parts by their path, with the reason."""

    @abstractmethod
    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""

    @abstractmethod
    def contradictions(self) -> list[CostproofError]:
        """Every number that a model cannot run with, or that cannot stand beside another."""

    def normalised(self) -> dict[str, Any]:
        """All that decides a cost, as JSON data."""
        return {key: value for key, value in asdict(self).items() if key != "waived"}

    def config_hash(self) -> str:
        """First twelve hex digits of the SHA-256 of the normalised configuration."""
        return hashlib.sha256(json.dumps(self.normalised(), sort_keys=True).encode()).hexdigest()[:12]


C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Configured(ABC, Generic[C]):
    """A target with one configuration. Instances are picklable."""

    config: C
    name: str
    options: RunOptions = field(default_factory=RunOptions)
    cut: tuple[tuple[str, str], ...] = ()
    """What ``options.layers`` left out of ``config``, which is cut already."""
    whole: C | None = None
    """The configuration before it was cut; ``None`` if it was not."""
    published: C | None = None
    """What differences are told from; ``None``: the family's own."""
    is_known: bool = True
    """Whether differences are told: a file of a model that nobody listed may be published as it is."""
    stored: Stored = PLAIN
    """How the checkpoint of ``config`` stores its weights."""
    stages: ClassVar[tuple[str, ...]]

    @abstractmethod
    def first_layers(self, layers: int) -> tuple[C, dict[str, str]]:
        """The configuration with its first layers alone, and what is left out: ``decoder layers`` -> ``2 of 12``.

        Raises:
            BadInput: the model has no such number of layers, or cannot be cut so.
        """

    @abstractmethod
    def problems(self, workload: Workload) -> list[CostproofError]:
        """Everything that keeps the model from running a workload."""

    def with_keys(self, changes: Mapping[str, Any]) -> Self:
        """The same model with other values under keys of its configuration.

        Raises:
            Problems: as :func:`~costproof.models.changing.with_keys`.
        """
        return replace(self, config=with_keys(self.config, changes))

    def normalised(self) -> str:
        """The configuration as JSON."""
        return json.dumps(self.config.normalised(), sort_keys=True)

    def info(self) -> TargetInfo:
        """The target as data."""
        return TargetInfo(
            name=self.name,
            implementation="native",
            config_hash=self.config.config_hash(),
            symbols=self.config.symbols(),
            stages=self.stages,
            waived=dict(self.config.waived),
            cut=dict(self.cut),
            changed=changes(self.whole or self.config, self.published or type(self.config)())
            if self.is_known
            else None,
            config=keys_of(self.config),
            quantised=dict(self.stored.quantised),
        )

    @property
    def dtype(self) -> Dtype:
        """The dtype of a run unless another is asked for: what the configuration names, or bfloat16."""
        return self.stored.dtype or "bfloat16"

    def with_options(self, options: RunOptions) -> Self:
        """The same model, run in another way; with ``layers``, cut as :meth:`first_layers` says."""
        options.check()
        if options.layers is None or options.layers == self.options.layers:
            return replace(self, options=options)
        if self.cut:
            raise BadInput("the model is cut already", where="--layers", got=options.layers)
        small, cut = self.first_layers(options.layers)
        return replace(self, config=small, options=options, cut=tuple(cut.items()), whole=self.config)

    def uncut(self) -> Self:
        """The model with all its layers."""
        return replace(self, config=self.whole or self.config, options=RunOptions(), cut=(), whole=None)

    def conventions(self, workload: Workload) -> Conventions:
        """The conventions of all numbers made for this workload."""
        return Conventions(
            logits=workload.logits,
            expert_kernel=workload.experts,
            attention=workload.attention,
            dtype=workload.dtype,
        )

    def check(self, workload: Workload) -> None:
        """Check that the model can run the workload."""
        problems = self.problems(workload)
        if problems:
            raise Problems("the workload cannot be run", problems)
