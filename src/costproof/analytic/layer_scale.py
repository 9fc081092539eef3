"""Learned scales of what a layer adds to its input."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class LayerScale:
    """y = x * λ with one λ for every channel: one multiplication per element.

        vector_flops = rows width

    λ is width parameters, read once; x comes in, y goes out.
    """

    name: ClassVar[str] = "layer_scale"
    title: ClassVar[str] = "Scale of a branch, by channel"
    source: ClassVar[str] = "Touvron et al. 2021, Going deeper with Image Transformers (CaiT), section 2.1"

    rows: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        elements = self.rows * self.width * self.item_bytes
        return LayerCosts(
            params=self.width,
            weight_bytes=self.width * self.item_bytes,
            weight_read_bytes=self.width * self.item_bytes,
            vector_flops={"elementwise": self.rows * self.width},
            input_bytes=elements,
            output_bytes=elements,
            between=0,
        )
