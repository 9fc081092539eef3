"""Soft cap of logits."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class SoftCap:
    """c tanh(x / c): a division, tanh, a multiplication for every element.

    vector_flops = 3 elements

    Unfused, what the first two operators write is read by the next: 4 elements more.
    """

    name: ClassVar[str] = "soft_cap"
    title: ClassVar[str] = "Soft cap of the logits"
    source: ClassVar[str] = "Gemma Team 2024, Gemma 2, section 2.2; Bello et al. 2016, equation 16"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        moved = self.elements * self.item_bytes
        return LayerCosts(
            vector_flops={"elementwise": 3 * self.elements}, input_bytes=moved, output_bytes=moved, between=4 * moved
        )
