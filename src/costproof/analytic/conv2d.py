"""Cost formulas of two-dimensional convolutions and patch embeddings."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from costproof.analytic.costs import LayerCosts, Size, layer

Sides: TypeAlias = Size | tuple[Size, Size]
"""Height and width, or one number for a square."""


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
