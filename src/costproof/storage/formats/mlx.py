"""MLX: integers of two to eight bits, packed along the columns, with a scale and an offset for groups of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class Mlx(Format):
    """Words of 32 bits with the integers of a row; tables of embeddings are stored in the same manner."""

    title: ClassVar[str] = "MLX"
    source: ClassVar[str] = "mlx.nn.QuantizedLinear and QuantizedEmbedding, mode affine"

    bits: int
    group: int

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, ⌈columns bits / 32⌉], scales and offsets [rows, columns / group], and a bias."""
        groups = (of.rows, ceil_div(of.columns, self.group))
        return (
            StoredTensor("weight", "U32", (of.rows, ceil_div(of.columns * self.bits, 32))),
            StoredTensor("scales", of.dtype, groups, "scale"),
            StoredTensor("biases", of.dtype, groups, "zero point"),
            *of.plain_bias,
        )
