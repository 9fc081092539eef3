"""Cost formulas of the layers around an image encoder: convolutions, patch and position embeddings, 2-D rotary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import sympy

from costproof.analytic.compose import ModulePart
from costproof.analytic.costs import LayerCosts, Size, layer
from costproof.analytic.elementwise import Activation
from costproof.analytic.linear import Linear
from costproof.analytic.norms import NORMS, NormKind

Sides: TypeAlias = Size | tuple[Size, Size]
"""Height and width of a kernel, stride or grid; one number where both are equal."""


def area(sides: Sides) -> Size:
    """Return height times width."""
    return sides[0] * sides[1] if isinstance(sides, tuple) else sides**2


@layer
class Conv2d:
    """A convolution from [batch, channels_in, h, w] to [batch, channels_out, h', w'] with a kernel of k_h x k_w.

    Each of the batch x channels_out x h' w' results sums channels_in / groups x k_h k_w products;
    taps that fall on the zero padding are computed like the others, so they count:

        flops = 2 batch h' w' channels_out (channels_in / groups) k_h k_w

    The layer owns channels_out x channels_in / groups x k_h k_w weights and, with a bias,
    channels_out more; adding the bias is part of the operator. kernel, side_in and side_out are one
    number where both sides are equal, else (height, width). side_out is a field rather than a
    formula because the callers know it exactly.

    Where windows overlap, algorithms for small tiles (Winograd 1980) have fewer products, but no fewer than one for
    each result and channel: what a floor of time leaves out is all but one of the k_h k_w.
    """

    name: ClassVar[str] = "conv2d"
    title: ClassVar[str] = "Two-dimensional convolution"
    source: ClassVar[str] = "torch.nn.Conv2d"

    batch: Size
    channels_in: Size
    channels_out: Size
    kernel: Sides
    side_in: Sides
    side_out: Sides
    item_bytes: Size
    bias: bool = True
    groups: Size = 1
    overlapping: bool = True
    """Whether the kernel's windows share elements, as with a stride below the kernel size or with padding."""

    def costs(self) -> LayerCosts:
        per_output = area(self.kernel) * _divide(self.channels_in, self.groups)
        weights = self.channels_out * per_output + (self.channels_out if self.bias else 0)
        results = self.batch * self.channels_out * area(self.side_out)
        least = 2 * results * _divide(self.channels_in, self.groups)
        flops = least * area(self.kernel)
        return LayerCosts(
            params=weights,
            weight_bytes=weights * self.item_bytes,
            weight_read_bytes=weights * self.item_bytes,
            flops={"conv2d": flops},
            skippable_flops={"conv2d": flops - least if self.overlapping else 0},
            input_bytes=self.batch * self.channels_in * area(self.side_in) * self.item_bytes,
            output_bytes=results * self.item_bytes,
            intermediate_bytes=0,
        )


def _divide(channels: Size, groups: Size) -> Size:
    if isinstance(channels, int) and isinstance(groups, int):
        return channels // groups
    return channels / groups


@layer
class PatchEmbedding:
    """Cuts views into patches and maps each patch to a vector.

    It is a convolution whose kernel and stride are both the patch: no patch overlaps another, so a
    view of side² pixels gives (side / patch)² tokens, each a dot product over channels x patch²
    pixels for every one of the hidden results:

        flops = 2 views (side / patch)² hidden channels patch²  =  2 views side² hidden channels

    side is a multiple of patch; with a bias, hidden more parameters. Views and patches that are not
    square have (height, width) for side, patch and grid, and their product for the square.
    """

    name: ClassVar[str] = "patch_embedding"
    title: ClassVar[str] = "Patch embedding"
    source: ClassVar[str] = "Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, section 3.1"

    views: Size
    channels: Size
    hidden: Size
    patch: Sides
    side: Sides
    grid: Sides
    """Number of patches along each side: side / patch."""
    item_bytes: Size
    bias: bool = True

    def costs(self) -> LayerCosts:
        return Conv2d(
            batch=self.views,
            channels_in=self.channels,
            channels_out=self.hidden,
            kernel=self.patch,
            side_in=self.side,
            side_out=self.grid,
            item_bytes=self.item_bytes,
            bias=self.bias,
            overlapping=False,
        ).costs()


FLOAT32: Final = 4
"""Bytes of an element of tensors that are float32 in every run."""
_TAPS: Final = 4
"""Number of grid points that a bilinear interpolation reads."""


@layer
class VolumePatches:
    """A convolution on flattened patches [patches, channels, t, p, p] to [patches, hidden]; its kernel covers a patch.

    Each result is a dot product over volume = channels t p² elements:

        flops = 2 patches volume hidden

    The layer owns hidden x volume weights and, with a bias, hidden biases. The patches come in cut already.
    """

    name: ClassVar[str] = "volume_patches"
    title: ClassVar[str] = "Patch embedding of images and videos"
    source: ClassVar[str] = "torch.nn.Conv3d; Qwen3VLVisionPatchEmbed (transformers)"

    patches: Size
    volume: Size
    hidden: Size
    item_bytes: Size
    bias: bool = True

    def costs(self) -> LayerCosts:
        weights = self.volume * self.hidden + (self.hidden if self.bias else 0)
        return LayerCosts(
            params=weights,
            weight_bytes=weights * self.item_bytes,
            weight_read_bytes=weights * self.item_bytes,
            flops={"conv3d": 2 * self.patches * self.volume * self.hidden},
            input_bytes=self.patches * self.volume * self.item_bytes,
            output_bytes=self.patches * self.hidden * self.item_bytes,
            intermediate_bytes=0,
        )


@layer
class InterpolatedPositions:
    """Adds to every patch a bilinear interpolation of the position embeddings of four neighbours on a table's grid.

    Four multiplications and four additions for every element, and the sum with the patch:

        vector_flops = 9 patches width

    In come 4 patches x width looked-up rows, 4 patches weights in float32, and the patches; out go the sums. Which
    rows, and with which weights, is prepared with the image and does not count.

    Unfused, the weighed rows are written and read in float32, 32 bytes per element; their sum is written and read in
    the run's dtype.
    """

    name: ClassVar[str] = "interpolated_positions"
    title: ClassVar[str] = "Absolute positions, interpolated from four rows"
    source: ClassVar[str] = "Qwen3VLVisionModel.forward (transformers)"

    patches: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        elements = self.patches * self.width
        return LayerCosts(
            vector_flops={"elementwise": (2 * _TAPS + 1) * elements},
            input_bytes=(_TAPS + 1) * elements * self.item_bytes + _TAPS * self.patches * FLOAT32,
            output_bytes=elements * self.item_bytes,
            intermediate_bytes=(4 * 2 * FLOAT32 + 2 * self.item_bytes) * elements,
        )


@layer
class AxialTable:
    """Tables cos(t ω) and sin(t ω), in float32, for each patch's row and column and head_dim / 4 frequencies ω.

    Of head_dim / 2 angles a patch: the product, a cosine, a sine, and the scaling of both:

        vector_flops = 5/2 patches head_dim

    Both tables are doubled up to head_dim by copies. The frequencies come in, head_dim / 4 elements; the tables go out.
    The module registers the frequencies twice, ``inv_freq`` and ``original_inv_freq``, in float32 in every run:

        buffer_bytes = 2 head_dim / 4 x 4 = 2 head_dim

    Unfused, in float32, for each angle: it is written once and read twice; each function, scaled and not, is written
    and read; rows and columns of both are joined, which writes and reads them, and doubled: 3 + 8 + 4 elements of 4
    bytes.
    """

    name: ClassVar[str] = "axial_table"
    title: ClassVar[str] = "Rotary positions by row and column: cosines and sines"
    source: ClassVar[str] = "Heo et al. 2024, Rotary Position Embedding for Vision Transformer; transformers"

    patches: Size
    head_dim: Size

    def costs(self) -> LayerCosts:
        elements = self.patches * self.head_dim
        return LayerCosts(
            vector_flops={"elementwise": 5 * elements / 2},
            input_bytes=self.head_dim * FLOAT32 / 4,
            buffer_bytes=2 * self.head_dim * FLOAT32 / 4,
            buffer_read_bytes=self.head_dim * FLOAT32 / 4,
            output_bytes=2 * elements * FLOAT32,
            intermediate_bytes=15 * FLOAT32 * elements / 2,
        )


@layer
class JoinedImages:
    """Concatenation of the attention outputs of all images: a copy, which counts only as unfused bytes."""

    name: ClassVar[str] = "joined_images"
    title: ClassVar[str] = "Joining of the images after attention"
    source: ClassVar[str] = "Qwen3VLVisionAttention.forward (transformers)"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        return LayerCosts(intermediate_bytes=2 * self.elements * self.item_bytes)


@layer
class WindowOrder:
    """Reorders patches so that attention windows are contiguous, and merged tokens back to the image's order.

    Everything is data movement: no FLOPs. patches x width elements, the cosines and sines of every patch, 2 patches
    head_dim in float32, and tokens x out merged ones are read and written. Where they go, integers say.
    """

    name: ClassVar[str] = "window_order"
    title: ClassVar[str] = "Order of patches for attention in windows"
    source: ClassVar[str] = "Qwen2_5_VisionTransformerPretrainedModel.forward (transformers)"

    patches: Size
    width: Size
    head_dim: Size
    tokens: Size
    out: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        states = (self.patches * self.width + self.tokens * self.out) * self.item_bytes
        moved = states + 2 * self.patches * self.head_dim * FLOAT32
        return LayerCosts(input_bytes=moved, output_bytes=moved, intermediate_bytes=0)


def window_pairs(side: Size, window: Size) -> Size:
    """Return the number of token pairs within windows, over all windows of a side x side image.

    Windows are cut from the first corner on; those at the far sides are as large as the remainder. A row of the image
    consists of floor(side / window) pieces of ``window`` units and a remainder r, so the squares of its pieces sum to
    window² floor(side / window) + r². A window is the product of a piece of a row and a piece of a column, so the sum
    over windows is the square of that sum.

    Source: Bai et al. 2025, Qwen2.5-VL, section 2.1.1; get_vision_window_index (transformers).
    """
    whole = sympy.floor(sympy.sympify(side) / window)
    return (window**2 * whole + (side - window * whole) ** 2) ** 2


@dataclass(frozen=True, slots=True)
class PatchMerger:
    """Merger of patches: down(act(up(x))), where x concatenates the norms of ``merged`` neighbouring patches.

    Roles: ``.norm``, ``.up``, ``.activation``, ``.down`` below its own.

    Source: Wang et al. 2024, Qwen2-VL; Qwen3VLVisionPatchMerger (transformers).
    """

    width: Size
    merged: Size
    """Number of patches that are merged to one token."""
    out: Size
    norm_last: bool = False
    """Whether the norm follows the concatenation of the neighbours."""
    norm: NormKind = "layer"

    def parts(self, role: str, patches: Size, b: Size) -> tuple[ModulePart, ...]:
        """Return the modules of the merger with their formulas, for ``b`` bytes per element."""
        rows, inner = patches / self.merged, self.width * self.merged
        kind = NORMS[self.norm]
        norm = kind(rows, inner, b) if self.norm_last else kind(patches, self.width, b)
        return (
            ModulePart(role),
            ModulePart(f"{role}.norm", (norm,)),
            ModulePart(f"{role}.up", (Linear(rows, inner, inner, b),)),
            ModulePart(f"{role}.activation", (Activation(rows * inner, "gelu", b),)),
            ModulePart(f"{role}.down", (Linear(rows, inner, self.out, b),)),
        )
