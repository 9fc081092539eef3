"""bitsandbytes in four bits: two numbers in a byte, and a maximum for every 64 weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Final

from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.tensors import DESCRIPTION, STORED_AS, StoredTensor, ceil_div

_BLOCK: Final = 64
_NESTED: Final = 256
"""Maxima with a scale of their own, if these are quantised too."""


@dataclass(frozen=True, slots=True)
class FourBit(Format):
    """W flattened, the maximum of each block of 64 weights, and the 16 values that the four-bit codes represent."""

    title: ClassVar[str] = "bitsandbytes, 4 bits"
    source: ClassVar[str] = "bitsandbytes Params4bit, QuantState.as_dict(packed=True); Dettmers et al. 2023, QLoRA"

    in_numbers: ClassVar[bool] = True
    kind: str
    """``nf4`` or ``fp4``."""
    nested: bool
    """Whether the maxima are stored in eight bits ("double quantisation")."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [⌈rows columns / 2⌉, 1], the maxima and their scales, and the tables of values."""
        blocks = ceil_div(of.rows * of.columns, _BLOCK)
        maxima = StoredTensor("weight.absmax", "U8" if self.nested else "F32", (blocks,), "scale")
        description = StoredTensor(f"weight.{self._state}", "U8", (self._description_bytes(of),), DESCRIPTION)
        return (
            StoredTensor("weight", "U8", (ceil_div(of.rows * of.columns, 2), 1)),
            maxima,
            StoredTensor("weight.quant_map", "F32", (16,), "table"),
            *(self._scales_of_maxima(blocks) if self.nested else (description,)),
            *of.plain_bias,
        )

    @property
    def _state(self) -> str:
        return f"quant_state.bitsandbytes__{self.kind}"

    def _description_bytes(self, of: LinearShape) -> int:
        """Return the length of the description of a layer whose maxima are not quantised."""
        dtype = next(name for name, stored in STORED_AS.items() if stored == of.dtype)
        shape = [int(of.rows), int(of.columns)]
        return len(json.dumps({"quant_type": self.kind, "blocksize": _BLOCK, "dtype": dtype, "shape": shape}))

    @staticmethod
    def _scales_of_maxima(blocks: object) -> tuple[StoredTensor, ...]:
        return (
            StoredTensor("weight.nested_absmax", "F32", (ceil_div(blocks, _NESTED),), "scale"),
            StoredTensor("weight.nested_quant_map", "F32", (_NESTED,), "table"),
        )

    def undetermined(self) -> tuple[str, ...]:
        """Return the name of the JSON tensor that describes nested quantisation, whose size depends on the weights."""
        if not self.nested:
            return ()
        return (f"weight.{self._state}: JSON of some 170 bytes, with a number from the data",)
