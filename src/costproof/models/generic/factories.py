"""Define factories of generic targets' modules, as plain data that can be sent to other processes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from costproof.ledger.workload import AttentionKind, Dtype
from costproof.models.generic.truncation import CutModel
from costproof.weights.stored import PLAIN, Stored

if TYPE_CHECKING:
    from torch import nn

DEFAULT_DTYPE: Final[Dtype] = "bfloat16"
"""Dtype of a model whose configuration names none."""


@dataclass(frozen=True, slots=True)
class Made:
    """A module that is ready to run, with its inputs and notes."""

    module: nn.Module
    inputs: Mapping[str, Any] | None = None
    """Keyword arguments of ``forward``, if the factory provides them."""
    notes: tuple[str, ...] = ()
    """Notes on choices made while the module was built."""
    waived: Mapping[str, str] = field(default_factory=dict)
    """Keys of its configuration that affect no cost, with the reason."""


class ModuleMaker(Hashable, Protocol):
    """Protocol of factories that build the module of a generic target."""

    @property
    def name(self) -> str:
        """Return the name of the target."""

    @property
    def what(self) -> str:
        """Return the origin of the module, such as ``BertForMaskedLM of transformers``."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """Return the integers in the model's configuration by name."""

    @property
    def chooses(self) -> frozenset[str]:
        """Return the options among ``dtype`` and ``attention`` that :meth:`make` can set."""

    @property
    def stored(self) -> Stored:
        """Return the storage format of the weights in the model's checkpoint."""

    def make(self, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
        """Build the module and its inputs, on meta if possible; for ``None`` the model chooses.

        Raises:
            BadInput: the factory does not make a module.
            Incomplete: the module cannot be built in this environment.
        """


@runtime_checkable
class Cuttable(ModuleMaker, Protocol):
    """Factory of a module that can be built with fewer layers."""

    def first_layers(self, layers: int, *, more: bool = False) -> tuple[ModuleMaker, CutModel]:
        """Return the factory of the truncated module, and a description of the truncation.

        Args:
            more: with one more layer of each kind that is left out.

        Raises:
            BadInput: it cannot be truncated to this number of layers.
        """

    def check_depth(self, module: nn.Module) -> None:
        """Check that the module does not have too many layers to be counted.

        Raises:
            BadInput: it has too many.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Factory that returns an existing module object of this process, with the arguments of its call."""

    name: str
    what: str
    module: nn.Module
    inputs: Mapping[str, Any] | None = None
    """Keyword arguments of the call; ``None`` for example inputs that match the module's signature."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    chooses: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    stored: Stored = PLAIN

    def make(self, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
        """Return the module itself."""
        return Made(self.module, self.inputs, self.notes)
