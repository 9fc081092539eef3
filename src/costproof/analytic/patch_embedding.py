"""Patch embedding."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.conv2d import Conv2d, Sides
from costproof.analytic.costs import LayerCosts, Size, layer


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
    """Patches along each side: side / patch."""
    item_bytes: Size
    bias: bool = True

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        return Conv2d(
            batch=self.views,
            channels_in=self.channels,
            channels_out=self.hidden,
            kernel=self.patch,
            side_in=self.side,
            side_out=self.grid,
            item_bytes=self.item_bytes,
            bias=self.bias,
        ).costs()
