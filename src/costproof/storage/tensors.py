"""Describe stored tensors: dtype, shape, elements and bytes, as integers or as expressions in sizes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

from costproof.ledger.errors import Incomplete, Recount

Size: TypeAlias = Any
"""An integer, or a sympy expression of positive integers."""

DTYPE_BITS: Final[dict[str, int]] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "C64": 64,
}  # fmt: skip
"""Bits of an element, by the names of dtypes in the header of a safetensors file."""
BLOCKS: Final[dict[str, tuple[int, int]]] = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q8_1": (32, 36),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "Q8_K": (256, 292), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ3_XXS": (256, 98), "IQ1_S": (256, 50),
    "IQ4_NL": (32, 18), "IQ3_S": (256, 110), "IQ2_S": (256, 82), "IQ4_XS": (256, 136), "IQ1_M": (256, 56),
    "TQ1_0": (256, 54), "TQ2_0": (256, 66), "MXFP4": (32, 17), "NVFP4": (64, 36), "Q1_0": (128, 18),
}  # fmt: skip
"""Weights in a block and bytes of a block, by GGUF type (constants of gguf-py).

A block of Q8_1, a type of intermediate results that no file has, is that of ggml's C code: two factors in 2 bytes each,
where older versions, and gguf-py still, have them in 4 (40 bytes).
"""

DESCRIPTION: Final = "description"
"""Purpose of a tensor that loading converts to attributes, so that a loaded model does not hold it."""
STORED_AS: Final[dict[str, str]] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
"""Safetensors name of a floating-point dtype, by its name in torch."""


def ceil_div(a: Size, b: Size) -> Size:
    """Return a / b rounded up."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    import sympy

    return sympy.ceiling(a / b)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint, or ``count`` tensors of equal shape and dtype."""

    name: str
    """Full name, or the name relative to the tensor's module."""
    dtype: str
    """A key of :data:`DTYPE_BITS`, or of :data:`BLOCKS`."""
    shape: tuple[Size, ...]
    purpose: str = "weight"
    """``weight``, ``scale``, ``zero point``, ``index``, ``bias``, ``table`` or ``description``."""
    count: Size = 1
    stands_for: Size = 0
    """Number of weights that a quantised tensor represents; 0 for an unquantised tensor."""

    @property
    def is_held(self) -> bool:
        """Return whether a loaded model keeps the tensor, rather than attributes computed from it."""
        return self.purpose != DESCRIPTION

    @property
    def elements(self) -> Size:
        """Return the number of elements of all ``count`` tensors; a word that packs several weights is one element."""
        return self.count * prod(self.shape)

    @property
    def bytes(self) -> Size:
        """Return the bytes of all ``count`` tensors."""
        if self.dtype in BLOCKS:
            weights, size = BLOCKS[self.dtype]
            return self.elements // weights * size
        bits = self.elements * DTYPE_BITS[self.dtype]
        return bits // 8 if isinstance(bits, int) else bits / 8


@dataclass(frozen=True, slots=True)
class StoredTotals:
    """Numbers of tensors, elements and bytes of a checkpoint."""

    bytes: int
    """Bytes of all tensors, without the headers of the files."""
    elements: int
    """Stored elements, including scales and packed words: the sum of the sizes in a header."""
    by_dtype: tuple[tuple[str, int], ...]
    """Pairs of a dtype and its number of elements, sorted by dtype."""


def totals(tensors: Iterable[StoredTensor]) -> StoredTotals:
    """Return the totals of tensors with integer shapes."""
    elements, size = Counter[str](), 0
    for tensor in tensors:
        elements[tensor.dtype] += tensor.elements
        size += tensor.bytes
    return StoredTotals(size, sum(elements.values()), tuple(sorted(elements.items())))


_WIDE: Final = {
    "deepseek_v4": re.compile(
        r"(.*\.)?(hc_(attn|ffn|head)_(fn|base|scale)|attn_sink|ape"  # as files name them
        r"|(attn_hc|ffn_hc)\.(fn|base|scale)|hc_head\.hc_(fn|base|scale)|sinks|position_bias)"  # and the class
    )
}  # fmt: skip
"""Pattern of the names of parameters that files have in float32, by model type; source: headers of DeepSeek-V4-Pro."""


def width_recounts(model_type: str, name: str, bits: int, usual: int) -> Iterator[Recount]:
    """Yield a second count of the bits of a parameter's elements in a checkpoint, if its model type has wide ones.

    Args:
        usual: bits of those that are not wide.
    """
    wide = _WIDE.get(model_type)
    if wide is not None:
        again = 32 if wide.fullmatch(name) else usual
        yield Recount("checkpoint", name, "bits of an element", bits, again)


def require_dtype(dtype: str, where: str) -> str:
    """Return the dtype in a header after a check that its size is known.

    Raises:
        Incomplete: it is not.
    """
    if dtype not in DTYPE_BITS:
        raise Incomplete(
            "the size of this dtype is not known",
            where=where,
            expected="one of " + ", ".join(DTYPE_BITS),
            got=dtype[:40],
        )
    return dtype
