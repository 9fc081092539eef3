"""Weights as compressed-tensors packs them: integers along the columns, and four-bit floating point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class PackedIntegers(Format):
    """Words of 32 bits that pack the integers of each row, and a tensor with the unpacked shape."""

    title: ClassVar[str] = "compressed-tensors, packed integers"
    source: ClassVar[str] = "compressed-tensors pack-quantized (PackedQuantizationCompressor)"

    bits: int
    group: int | None
    """Columns with one scale; ``None``: the whole row."""
    symmetric: bool = True
    ordered: bool = False
    """Whether columns were quantised in the order of their activations, so that each has the number of its group."""
    shape_dtype: str = "I64"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight_packed [rows, ⌈columns bits / 32⌉], scales [rows, groups], the shape, and optional zero points.

        Zero points are packed along the rows.
        """
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        zeros = StoredTensor("weight_zero_point", "I32", (ceil_div(of.rows * self.bits, 32), groups), "zero point")
        return (
            StoredTensor("weight_packed", "I32", (of.rows, ceil_div(of.columns * self.bits, 32))),
            StoredTensor("weight_scale", of.dtype, (of.rows, groups), "scale"),
            StoredTensor("weight_shape", self.shape_dtype, (2,), "table"),
            *(() if self.symmetric else (zeros,)),
            *((StoredTensor("weight_g_idx", "I32", (of.columns,), "index"),) if self.ordered else ()),
            *of.plain_bias,
        )

    def assumed(self) -> tuple[str, ...]:
        """Return the dtype of the shapes."""
        return (f"shapes of packed matrices are {self.shape_dtype}, which no key says",)


@dataclass(frozen=True, slots=True)
class PackedFloats(Format):
    """Two four-bit numbers in a byte, with a scale for each group of columns: MXFP4 or NVFP4."""

    title: ClassVar[str] = "compressed-tensors, packed 4-bit floating point"
    source: ClassVar[str] = "compressed-tensors nvfp4-pack-quantized and mxfp4-pack-quantized"

    group: int
    scale_dtype: str
    two_levels: bool
    """Whether a float32 scale of the matrix is stored too."""
    inputs: bool
    """Whether inputs are quantised with a stored scale."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight_packed [rows, columns / 2], scales [rows, columns / group] and global scales of the matrix."""
        return (
            StoredTensor("weight_packed", "U8", (of.rows, ceil_div(of.columns, 2))),
            StoredTensor("weight_scale", self.scale_dtype, (of.rows, ceil_div(of.columns, self.group)), "scale"),
            *((StoredTensor("weight_global_scale", "F32", (1,), "scale"),) if self.two_levels else ()),
            *((StoredTensor("input_global_scale", "F32", (1,), "scale"),) if self.inputs else ()),
            *of.plain_bias,
        )
