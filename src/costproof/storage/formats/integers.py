"""Weights in eight-bit integers, not packed: compressed-tensors W8A8 and bitsandbytes' LLM.int8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class Int8(Format):
    """W in int8 with scales in the dtype of the model: one, one for each row, or one for each group of columns."""

    title: ClassVar[str] = "int8"
    source: ClassVar[str] = "compressed-tensors int-quantized"

    group: int | None
    """Columns with one scale; ``None``: the whole row."""
    whole: bool = False
    """Whether one scale is for the matrix."""
    symmetric: bool = True
    static: bool = False
    """Whether the scale of the input is stored."""
    static_zero: bool = False
    """Whether its zero point is."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], scales and, if not symmetric, zero points of the same shape."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        shape = (1,) if self.whole else (of.rows, groups)
        return (
            StoredTensor("weight", "I8", (of.rows, of.columns)),
            StoredTensor("weight_scale", of.dtype, shape, "scale"),
            *(() if self.symmetric else (StoredTensor("weight_zero_point", "I8", shape, "zero point"),)),
            *((StoredTensor("input_scale", of.dtype, (1,), "scale"),) if self.static else ()),
            *((StoredTensor("input_zero_point", "I8", (1,), "zero point"),) if self.static_zero else ()),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class LlmInt8(Format):
    """W in int8 with a float32 scale for each row; columns with outliers multiply in 16 bits."""

    title: ClassVar[str] = "bitsandbytes int8"
    source: ClassVar[str] = "bitsandbytes Linear8bitLt._save_to_state_dict; Dettmers et al. 2022, LLM.int8()"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], SCB [rows], and the number of its layout."""
        return (
            StoredTensor("weight", "I8", (of.rows, of.columns)),
            StoredTensor("SCB", "F32", (of.rows,), "scale"),
            StoredTensor("weight_format", "U8", (), "table"),
            *of.plain_bias,
        )
