"""ModelOpt's NVFP4: two four-bit numbers in a byte, with a scale of eight bits for each 16 columns, and one above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class Nvfp4(Format):
    """W in E2M1 with E4M3 scales for groups of columns, a float32 scale of the matrix, and one of its input."""

    title: ClassVar[str] = "NVFP4"
    source: ClassVar[str] = "NVIDIA ModelOpt, export of NVFP4"

    group: int = 16
    inputs: bool = True

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns / 2], weight_scale [rows, columns / group], weight_scale_2 and input_scale."""
        return (
            StoredTensor("weight", "U8", (of.rows, ceil_div(of.columns, 2))),
            StoredTensor("weight_scale", "F8_E4M3", (of.rows, ceil_div(of.columns, self.group)), "scale"),
            StoredTensor("weight_scale_2", "F32", (), "scale"),
            *((StoredTensor("input_scale", "F32", (), "scale"),) if self.inputs else ()),
            *of.plain_bias,
        )
