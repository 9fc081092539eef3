"""Support image encoders that take flattened patches and merge neighbouring ones into tokens, as in Qwen-VL."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.costs import Size
from costproof.analytic.layer_memory import LayerTape
from costproof.analytic.memory_tape import Piece
from costproof.analytic.patches import FLOAT32, JoinedImages
from costproof.analytic.rotary import Rotary
from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.encoding.config import ONE_CLASS, EncoderConfig
from costproof.models.encoding.formulas import ALL_PROJECTIONS


@dataclass(frozen=True, slots=True)
class PatchConfig(EncoderConfig):
    """Configuration of an encoder of flattened patches: sizes of patches and of merged tokens."""

    out: int = 0
    """Width of the tokens, which is that of the decoder that reads them."""
    patch: int = 16
    frames: int = 2
    """Number of video frames per patch; an image is repeated for each."""
    merge: int = 2
    """Number of patches along each side of a token."""
    channels: int = 3

    not_drawn: ClassVar = ONE_CLASS
    keys: ClassVar[Mapping[str, str]] = {
        **EncoderConfig.keys,
        "layers": "depth",
        "heads": "num_heads",
        "out": "out_hidden_size",
        "patch": "patch_size",
        "frames": "temporal_patch_size",
        "merge": "spatial_merge_size",
        "channels": "in_channels",
    }
    prefix: ClassVar[str] = "vision"
    chosen_layers: ClassVar[tuple[str, str]]
    """Field with the indices of the layers that differ from others, and its key in a file."""

    @property
    def volume(self) -> int:
        """Return the number of elements of a patch."""
        return self.channels * self.frames * self.patch**2

    @property
    def step(self) -> int:
        """Return the side in pixels of the square of ``merge`` x ``merge`` patches that makes a token."""
        return self.patch * self.merge

    def sizes(self) -> dict[str, int]:
        return EncoderConfig.sizes(self) | {"out": self.out, "volume": self.volume}

    def native(self) -> dict[str, Any]:
        field, key = self.chosen_layers
        return EncoderConfig.native(self) | {key: list(getattr(self, field))}

    def contradictions(self) -> list[CostproofError]:
        found = EncoderConfig.contradictions(self)
        if self.head_dim % 4:
            what, expected = "rows and columns are rotated in pairs", "heads whose width is a multiple of 4"
            found.append(BadInput(what, where="$.num_heads", expected=expected, got=self.heads))
        return found

    def __post_init__(self) -> None:
        """Convert the indices of the chosen layers to a tuple, since a certificate (JSON) gives a list."""
        field, _ = self.chosen_layers
        object.__setattr__(self, field, tuple(getattr(self, field)))

    @staticmethod
    def drawn_sizes(p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """Draw random values of all sizes except ``out`` and ``merge``, for a proof."""
        from costproof.models.encoding.domain import some_layers

        return {
            **some_layers(p, rng),
            "hidden": 4 * p["vision_heads"] * p["vision_head_quarters"],
            "intermediate": p["vision_intermediate"],
            "heads": p["vision_heads"],
            "patch": p["patch"],
            "frames": p["frames"],
            "channels": p["channels"],
        }


def patch_names(path: str = "") -> dict[str, str]:
    """Return the module paths of a tower at ``path`` by role, without merger and MLP."""
    tower = f"{path}." if path else ""
    layer = f"{tower}blocks.{{i}}"
    return {
        "vision": path,
        "vision.patches": f"{tower}patch_embed",
        "vision.patches.projection": f"{tower}patch_embed.proj",
        "vision.rotary": f"{tower}rotary_pos_emb",
        "vision.layer": layer,
        "vision.layer.norm1": f"{layer}.norm1",
        "vision.layer.attention": f"{layer}.attn",
        "vision.layer.attention.qkv": f"{layer}.attn.qkv",
        "vision.layer.attention.out": f"{layer}.attn.proj",
        "vision.layer.norm2": f"{layer}.norm2",
    }


def patch_attention(patches: Size, *, eager: bool, **more: Any) -> AttentionBlock:
    """Return the attention block of one layer on the patches of all images, each image attending only to itself.

    Args:
        eager: whether attention scores are materialised.
        more: further arguments of :class:`~costproof.analytic.attention_block.AttentionBlock`.
    """
    width, heads, head_dim, b = sym("vision_hidden"), sym("vision_heads"), sym("vision_head_dim"), sym("b")
    rotary = Rotary(1, patches, heads, heads, head_dim, FLOAT32, state_bytes=b)
    return AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        inner=width,
        bias=ALL_PROJECTIONS,
        fused=True,
        cached=False,
        written_out=eager,
        beside=(rotary, JoinedImages(patches * width, b)),
        **more,
    )


def axial_table(made: LayerTape, places: Piece, head_dim: Size) -> tuple[Piece, Piece]:
    """Record the float32 tables of cosines and sines of the rows and columns of all patches.

    Source: ``Qwen2_5_VisionRotaryEmbedding.forward`` (transformers).
    """
    tape, half = made.tape, made.call.rows * head_dim / 2
    angles = tape.make(4 * half, tape.make(8 * made.call.rows, places))
    scaled = [tape.make(4 * half, tape.make(4 * half, angles)) for _ in range(2)]
    cosines, sines = (tape.make(8 * half, tape.make(4 * half, piece)) for piece in scaled)
    return cosines, sines


@dataclass(frozen=True, slots=True)
class PackedLengths:
    """Stand-in for a tensor of cumulative lengths or image grids, from which a Qwen-VL class computes sequence lengths.

    Every operation that transformers applies to it returns the lengths as integers, so the code also runs on meta.
    """

    lengths: tuple[int, ...]

    def __getitem__(self, which: slice) -> PackedLengths:
        """Return the sequence lengths unchanged, in place of a slice of the cumulative lengths."""
        return self

    def __sub__(self, other: PackedLengths) -> PackedLengths:
        """Return the sequence lengths unchanged, in place of the difference of two slices of cumulative lengths."""
        return self

    def prod(self, dim: int) -> PackedLengths:
        """Return the sequence lengths unchanged, in place of the patches per image: products of a grid's rows."""
        return self

    def __floordiv__(self, merged: int) -> PackedLengths:
        """Return the numbers of tokens of ``merged`` patches each, in place of a quotient of tensors."""
        return PackedLengths(tuple(n // merged for n in self.lengths))

    def tolist(self) -> list[int]:
        """Return the sequence lengths as a list of integers."""
        return list(self.lengths)
