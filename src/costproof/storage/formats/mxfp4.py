"""MXFP4 as gpt-oss has it: stacks of experts in blocks of 32 weights, with a shared exponent of eight bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import StoredTensor, ceil_div

_BLOCK: Final = 32


@dataclass(frozen=True, slots=True)
class Mxfp4(Format):
    """W in E2M1, 16 bytes for 32 columns of a row, and an exponent for each block.

    One expert of a stack is a linear layer here; a stack is stored as one tensor of each kind.
    """

    title: ClassVar[str] = "MXFP4"
    source: ClassVar[str] = "OCP Microscaling formats 1.0; gpt-oss checkpoints; transformers Mxfp4GptOssExperts"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return blocks [rows, ⌈columns / 32⌉, 16] and scales [rows, ⌈columns / 32⌉]."""
        blocks = ceil_div(of.columns, _BLOCK)
        return (
            StoredTensor("blocks", "U8", (of.rows, blocks, _BLOCK // 2)),
            StoredTensor("scales", "U8", (of.rows, blocks), "scale"),
            *of.plain_bias,
        )
