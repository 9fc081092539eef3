"""Root mean square normalisation."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class RmsNorm:
    """y = x / sqrt(mean(x²) + eps) * w over rows of ``width`` elements.

    Per element: the square, the addition of the mean, the multiplication by the reciprocal root, the
    multiplication by w: 4. Per row: the addition of eps and the reciprocal square root: 2.

        vector_flops = 4 rows width + 2 rows

    It computes in float32 inside, but reads and writes item_bytes per element: the casts fuse. w is
    width parameters.
    """

    name: ClassVar[str] = "rms_norm"
    title: ClassVar[str] = "Root mean square normalisation"
    source: ClassVar[str] = "Zhang and Sennrich 2019, Root Mean Square Layer Normalization"

    rows: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        elements = self.rows * self.width
        return LayerCosts(
            params=self.width,
            weight_bytes=self.width * self.item_bytes,
            weight_read_bytes=self.width * self.item_bytes,
            vector_flops={"norm": 4 * elements + 2 * self.rows},
            input_bytes=elements * self.item_bytes,
            output_bytes=elements * self.item_bytes,
        )
