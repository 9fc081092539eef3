"""Define the interface of storage formats: the tensors that they store for a linear layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.tensors import Size, StoredTensor


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Shape of a linear layer Y = X Wᵀ + c with W [rows, columns]."""

    rows: Size
    """Output features."""
    columns: Size
    """Input features."""
    bias: bool
    dtype: str
    """Dtype of tensors that are not quantised, as in a header: ``BF16``."""

    @property
    def elements(self) -> Size:
        """Return the number of weights and biases."""
        return self.rows * self.columns + (self.rows if self.bias else 0)

    @property
    def plain_bias(self) -> tuple[StoredTensor, ...]:
        """Return the bias in :attr:`dtype`, if there is one."""
        return (StoredTensor("bias", self.dtype, (self.rows,), "bias"),) if self.bias else ()


class Format(ABC):
    """Interface of formats of stored linear layers."""

    title: ClassVar[str]
    source: ClassVar[str]
    """Source that defines the layout."""

    in_numbers: ClassVar[bool] = False
    """Whether a size depends on the digits of the shape, so that it has no formula."""

    @abstractmethod
    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return the stored tensors of a linear layer; names are relative to the path of the module."""

    def undetermined(self) -> tuple[str, ...]:
        """Return the tensors of a linear layer whose size no configuration determines, with the reason."""
        return ()

    def assumed(self) -> tuple[str, ...]:
        """Return the assumptions of the layout that follow from the producing tool, not from the configuration."""
        return ()
