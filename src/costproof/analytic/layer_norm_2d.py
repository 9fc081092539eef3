"""Layer normalisation over channels, written out in primitives."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class LayerNorm2d:
    """y = (x - mean) / sqrt(var + eps) * w + c over the ``width`` channels of every pixel.

    The same as a layer norm, but each step is an operator: the mean (1 per element), x - mean, its
    square, the mean of that, x - mean once more, the division by the root, the product with w, the
    sum with c: 8 per element. Per pixel: the addition of eps and the square root: 2.

        vector_flops = 8 rows width + 2 rows

    w and c are 2 width parameters.
    """

    name: ClassVar[str] = "layer_norm_2d"
    title: ClassVar[str] = "Layer normalisation over channels, written out"
    source: ClassVar[str] = "Kirillov et al. 2023, Segment Anything: LayerNorm2d"

    rows: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        elements = self.rows * self.width
        return LayerCosts(
            params=2 * self.width,
            weight_bytes=2 * self.width * self.item_bytes,
            weight_read_bytes=2 * self.width * self.item_bytes,
            vector_flops={"norm": 8 * elements + 2 * self.rows},
            input_bytes=elements * self.item_bytes,
            output_bytes=elements * self.item_bytes,
        )
