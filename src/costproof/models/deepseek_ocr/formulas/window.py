"""Windows of local attention: how many there are, and what padding and cutting cost."""

from __future__ import annotations

from typing import ClassVar

import sympy

from costproof.analytic.costs import LayerCosts, Size, layer


def windows_per_side(grid: Size, window: Size) -> Size:
    """Windows along one side of a grid that is padded up to whole windows: ceiling(grid / window)."""
    if isinstance(grid, int) and isinstance(window, int):
        return -(-grid // window)
    return sympy.ceiling(sympy.sympify(grid) / window)


@layer
class WindowPartition:
    """Pads [views, grid, grid, width] to whole windows of window² tokens and cuts it up.

    Along each side there are ceiling(grid / window) windows, so the attention that follows works on
    views x ceiling(grid / window)² windows of window² tokens: the padding is computed like the rest.
    Padding moves data and computes nothing. It reads views x grid² x width elements and writes
    views x (ceiling(grid / window) window)² x width, also when an implementation pads by nothing. Cutting,
    putting together and dropping the padding afterwards are views.
    """

    name: ClassVar[str] = "window"
    title: ClassVar[str] = "Window partition with padding"
    source: ClassVar[str] = (
        "Li et al. 2022, Exploring Plain Vision Transformer Backbones (ViTDet); SAM window_partition"
    )

    views: Size
    grid: Size
    window: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        padded = windows_per_side(self.grid, self.window) * self.window
        return LayerCosts(
            input_bytes=self.views * self.grid**2 * self.width * self.item_bytes,
            output_bytes=self.views * padded**2 * self.width * self.item_bytes,
        )
