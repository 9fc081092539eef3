"""What SAM's attention does of its own: windows with their padding, and decomposed relative positions."""

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
        """Return the costs of one call."""
        padded = windows_per_side(self.grid, self.window) * self.window
        return LayerCosts(
            input_bytes=self.views * self.grid**2 * self.width * self.item_bytes,
            output_bytes=self.views * padded**2 * self.width * self.item_bytes,
            intermediate_bytes=0,
        )


@layer
class RelativePosition:
    """bias[y, x, y', x'] = q[y, x] · R_h[y - y'] + q[y, x] · R_w[x - x'] on a side x side grid.

    Step by step, per axis (there are two, so everything but the last step counts twice):

    1. The table of ``entries`` x d is resampled to 2 side - 1 entries, linearly, even if it already
       has that length: 2 taps, so 3 operations per element: 3 d (2 side - 1).
    2. The coordinates are floating-point arithmetic: two scalings of side numbers, a difference and a
       shift of side² numbers: 2 side + 2 side².
    3. A look-up gives [side, side, d]: no FLOPs.
    4. One einsum "bhwc,hkc->bhwk" over sequences x side² queries, side keys along the axis and d
       channels: 2 sequences side³ d FLOPs.
    5. The two axes are added with broadcasting: sequences side⁴ operations, once.

        flops = 4 sequences side³ d
        vector_flops = 6 d (2 side - 1) (if resampled) + 4 side + 4 side² + sequences side⁴

    Adding the bias to the scores is counted by the attention, and so are the bytes of the queries,
    which both read. The layer owns both tables, 2 entries d parameters, and reads them whole; without
    step 1 the look-up reads them itself, side² rows of d each; whatever is fused, min(side², entries) rows.

    Branches: of more rows than entries some are the same.

    Unfused, twice, per axis: the resampled table is written and read; of the coordinates each scaling is written and
    read, 16 side bytes, and difference and shift, 16 side², in float32; the looked-up rows are written and read, side²
    d; the einsum reads the queries once more and writes sequences side³ elements, which the sum of both axes reads. The
    biases are written once, and read by attention.
    """

    name: ClassVar[str] = "relative_position"
    title: ClassVar[str] = "Decomposed relative positions"
    source: ClassVar[str] = "Li et al. 2021, MViTv2, equation 4; SAM get_rel_pos and get_decomposed_rel_pos"

    sequences: Size
    """Views or windows, times heads."""
    side: Size
    head_dim: Size
    entries: Size
    """Rows of one table."""
    item_bytes: Size
    resampled: bool = True
    """Whether step 1 runs; an implementation may leave it out where the length is right."""

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        tables = 2 * self.entries * self.head_dim
        resampled = 2 * (2 * self.side - 1) * self.head_dim if self.resampled else 0
        looked_up = 2 * self.side**2 * self.head_dim
        again = looked_up - 2 * sympy.Min(self.side**2, self.entries) * self.head_dim
        each_axis = resampled + looked_up + self.sequences * (self.side**2 * self.head_dim + 2 * self.side**3)
        return LayerCosts(
            params=tables,
            weight_bytes=tables * self.item_bytes,
            weight_read_bytes=(tables if self.resampled else looked_up) * self.item_bytes,
            shared_weight_bytes=0 if self.resampled else again * self.item_bytes,
            flops={"einsum": 4 * self.sequences * self.side**3 * self.head_dim},
            vector_flops={
                "resample": 6 * self.head_dim * (2 * self.side - 1) if self.resampled else 0,
                "elementwise": 4 * self.side + 4 * self.side**2 + self.sequences * self.side**4,
            },
            intermediate_bytes=2 * (16 * self.side + 16 * self.side**2)
            + 2 * (each_axis + self.sequences * self.side**4) * self.item_bytes,
        )
