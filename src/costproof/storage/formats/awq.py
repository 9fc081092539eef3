"""AWQ: four-bit integers packed along the rows, with scales and zero points for groups of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class Awq(Format):
    """Words of 32 bits with the integers of several rows, transposed; zero points are written in any case."""

    title: ClassVar[str] = "AWQ"
    source: ClassVar[str] = "AutoAWQ WQLinear_GEMM; Lin et al. 2023, AWQ"

    bits: int
    group: int | None

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return qweight [columns, rows bits / 32], qzeros, scales [groups, rows] and bias."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        packed = ceil_div(of.rows * self.bits, 32)
        return (
            StoredTensor("qweight", "I32", (of.columns, packed)),
            StoredTensor("qzeros", "I32", (groups, packed), "zero point"),
            StoredTensor("scales", "F16", (groups, of.rows), "scale"),
            *((StoredTensor("bias", "F16", (of.rows,), "bias"),) if of.bias else ()),
        )
