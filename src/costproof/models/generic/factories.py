"""What makes the module of a generic target: plain data, which goes to other processes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from costproof.ledger.workload import AttentionKind, Dtype
from costproof.models.checkpoint import PLAIN, Stored
from costproof.models.generic.truncation import CutModel

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Made:
    """A module that is ready to run."""

    module: nn.Module
    inputs: Mapping[str, Any] | None = None
    """Keyword arguments of a forward, where they come with it."""
    notes: tuple[str, ...] = ()
    """What was chosen while it was made."""
    waived: Mapping[str, str] = field(default_factory=dict)
    """Keys of its configuration that decide no cost, with the reason."""


class Maker(Hashable, Protocol):
    """Makes the module of a target."""

    @property
    def name(self) -> str:
        """What the target is called."""
        ...

    @property
    def what(self) -> str:
        """Where the module comes from, in words: ``BertForMaskedLM of transformers``."""
        ...

    @property
    def numbers(self) -> Mapping[str, int]:
        """Numbers of its configuration by name."""
        ...

    @property
    def chooses(self) -> frozenset[str]:
        """What :meth:`make` can be asked for: ``dtype``, ``attention``."""
        ...

    @property
    def stored(self) -> Stored:
        """How the checkpoint of the model stores its weights."""
        ...

    def make(self, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
        """The module and its inputs, on meta where the maker can choose; ``None`` leaves a choice to the model.

        Raises:
            BadInput: there is nothing that makes a module.
            Incomplete: it cannot be made here.
        """
        ...


@runtime_checkable
class Cuttable(Maker, Protocol):
    """Makes a module that can be had with fewer layers."""

    def first_layers(self, layers: int, *, more: bool = False) -> tuple[Maker, CutModel]:
        """What makes it with so many layers, and what that says about the whole module.

        Args:
            more: with one more layer of each kind that is left out.

        Raises:
            BadInput: it cannot be cut so.
        """
        ...

    def check_depth(self, module: nn.Module) -> None:
        """Check that the module has no more layers than can be counted.

        Raises:
            BadInput: it has more.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A module that is at hand, with the arguments of its call."""

    name: str
    what: str
    module: nn.Module
    inputs: Mapping[str, Any] | None = None
    """Keyword arguments of its call; what its signature asks for if ``None``."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    chooses: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    stored: Stored = PLAIN

    def make(self, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
        """The module itself."""
        return Made(self.module, self.inputs, self.notes)
