"""Weights in eight-bit floating point: scales for blocks, for rows, or one for the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class Fp8Blocks(Format):
    """W in E4M3 and ``weight_scale_inv``, which multiplies despite its name, for every block that W touches."""

    title: ClassVar[str] = "fp8, scales for blocks"
    source: ClassVar[str] = "DeepSeek-V3 technical report, section 3.3; transformers FP8Linear"

    block: tuple[int, int] = (128, 128)
    scale_dtype: str = "F32"
    scale: str = "weight_scale_inv"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns] and scales [⌈rows / block⌉, ⌈columns / block⌉]."""
        blocks = (ceil_div(of.rows, self.block[0]), ceil_div(of.columns, self.block[1]))
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            StoredTensor(self.scale, self.scale_dtype, blocks, "scale"),
            *of.plain_bias,
        )

    def assumed(self) -> tuple[str, ...]:
        """Return the dtype of the scales."""
        return (f"scales of blocks are {self.scale_dtype}, which no key says",)


@dataclass(frozen=True, slots=True)
class Fp8Tensor(Format):
    """W in E4M3 with one scale, and one of its input where that is static."""

    title: ClassVar[str] = "fp8, one scale"
    source: ClassVar[str] = "compressed-tensors float-quantized, strategy tensor; ModelOpt FP8; transformers FP8Linear"

    static: bool
    """Whether the scale of the input is stored."""
    scale: str = "weight_scale"
    input_scale: str = "input_scale"
    scale_dtype: str = "F32"
    scale_shape: tuple[int, ...] = ()

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], its scale, and that of the input."""
        scales = (self.scale, self.input_scale) if self.static else (self.scale,)
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            *(StoredTensor(name, self.scale_dtype, self.scale_shape, "scale") for name in scales),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class Fp8Rows(Format):
    """W in E4M3 with a scale for each row, in the dtype of the model; inputs are scaled as they come."""

    title: ClassVar[str] = "fp8, scales for rows"
    source: ClassVar[str] = "compressed-tensors float-quantized, strategy channel"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns] and scales [rows, 1]."""
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            StoredTensor("weight_scale", of.dtype, (of.rows, 1), "scale"),
            *of.plain_bias,
        )
