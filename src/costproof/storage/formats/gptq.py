"""GPTQ: integers of two to eight bits, packed along the columns, with scales and zero points for groups of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class Gptq(Format):
    """Words of 32 bits with the integers of a column's rows, transposed.

    ``g_idx`` gives the group of each column and is always written. AutoGPTQ writes a bias for every layer, zeros where
    the model has none.
    """

    title: ClassVar[str] = "GPTQ"
    source: ClassVar[str] = "AutoGPTQ and GPTQModel, QuantLinear; Frantar et al. 2022, GPTQ"

    bits: int
    group: int | None
    """Columns with one scale; ``None``: all of them."""
    zero_bias: bool = True
    """Whether a bias is written for layers without one."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return qweight [⌈columns bits / 32⌉, rows], qzeros, scales [groups, rows], g_idx [columns] and bias."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        return (
            StoredTensor("qweight", "I32", (ceil_div(of.columns * self.bits, 32), of.rows)),
            StoredTensor("qzeros", "I32", (groups, ceil_div(of.rows * self.bits, 32)), "zero point"),
            StoredTensor("scales", "F16", (groups, of.rows), "scale"),
            StoredTensor("g_idx", "I32", (of.columns,), "index"),
            *((StoredTensor("bias", "F16", (of.rows,), "bias"),) if of.bias or self.zero_bias else ()),
        )

    def assumed(self) -> tuple[str, ...]:
        """Return which biases are written."""
        return ("a bias of zeros is stored for layers without one, as AutoGPTQ does",) if self.zero_bias else ()
