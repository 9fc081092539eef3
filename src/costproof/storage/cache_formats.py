"""Define formats of key/value caches with fewer bits, as inference engines have them, with their scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costproof.storage.tensors import Size, StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """Cache format with quantised rows of keys and values, one per token and head, each with its scales."""

    bits: int
    """Bits of an element."""
    scales: str
    """Granularity of the scales, in words."""
    scale_bytes: int = 0
    """Bytes of a scale; 0: one scale is for a whole tensor, outside of the cache."""
    group: int = 0
    """Elements with one scale; 0: those of a head."""

    def head_bytes(self, width: Size) -> Size:
        """Return the bytes of one head of a token, keys or values, with ``width`` elements."""
        groups = ceil_div(width, self.group) if self.group else 1
        return ceil_div(width * self.bits, 8) + groups * self.scale_bytes


CACHE_FORMATS: Final[dict[str, CacheFormat]] = {
    "fp8": CacheFormat(8, "one scale a tensor"),
    "int8": CacheFormat(8, "a float32 scale a token and head", 4),
    "int4": CacheFormat(4, "a float32 scale a token and head", 4),
    "nvfp4": CacheFormat(4, "an 8-bit scale for 16 elements", 1, 16),
    "q8_0": CacheFormat(8, "a 16-bit scale for 32 elements", 2, 32),
    "q4_0": CacheFormat(4, "a 16-bit scale for 32 elements", 2, 32),
}
"""Formats by name; sources: vLLM ``v1/kv_cache_interface.py`` (fp8, per token and head, nvfp4), llama.cpp blocks."""
LATENT_FORMATS: Final[dict[str, str]] = {"fp8": "a float32 scale for 128 elements of a latent, rotated keys in 16 bits"}
"""Formats of latents (MLA), with their scales in words."""


def latent_bytes(rank: Size, rope: Size) -> Size:
    """Return the fp8 cache bytes of a latent (MLA), per token and layer: 512 + 4 x 4 + 2 x 64 = 656 for DeepSeek-V3."""
    return rank + 4 * ceil_div(rank, 128) + 2 * rope


_HEAD: Final = 0
_LAYOUTS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "fp8": (("F8_E4M3", 1),),
    "int8": (("I8", 1), ("F32", _HEAD)),
    "int4": (("U8", 2), ("F32", _HEAD)),
    "nvfp4": (("U8", 2), ("F8_E4M3", 16)),
    "q8_0": (("I8", 1), ("F16", 32)),
    "q4_0": (("U8", 2), ("F16", 32)),
}
"""Format -> dtype of each tensor of a head, and the elements of the head that one number of it is for."""


def cache_tensors(name: str, width: int, rope: int = 0) -> tuple[StoredTensor, ...]:
    """Return the tensors that hold one head of a token in a format, keys or values, or one latent with its rotated key.

    Graph sources count these. They are a second description of the formats, apart from the closed forms above.

    Args:
        name: the format.
        width: elements of the head, or of the latent.
        rope: elements of the rotated key of a latent, which stay in 16 bits; 0 for keys and values.
    """
    shapes: tuple[tuple[str, int], ...]
    if rope:
        shapes = (("F8_E4M3", width), ("F32", -(-width // 128)), ("BF16", rope))
    else:
        shapes = tuple((dtype, -(-width // of) if of else 1) for dtype, of in _LAYOUTS[name])
    return tuple(StoredTensor(f"cache.{dtype}", dtype, (count,)) for dtype, count in shapes)
