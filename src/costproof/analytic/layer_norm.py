"""Layer normalisation."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class LayerNorm:
    """y = (x - mean) / sqrt(var + eps) * w + c over rows of ``width`` elements.

    Per element: one addition for the mean, one subtraction, one square and one addition for the
    variance, one multiplication by the reciprocal root, one by w, one addition of c: 7. Per row: the
    addition of eps and the reciprocal square root: 2. (The divisions by the width that end the two
    means are not counted, as for every mean.)

        vector_flops = 7 rows width + 2 rows

    w and c are 2 width parameters.
    """

    name: ClassVar[str] = "layer_norm"
    title: ClassVar[str] = "Layer normalisation"
    source: ClassVar[str] = "Ba et al. 2016, Layer Normalization; torch.nn.LayerNorm"

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
            vector_flops={"norm": 7 * elements + 2 * self.rows},
            input_bytes=elements * self.item_bytes,
            output_bytes=elements * self.item_bytes,
        )
