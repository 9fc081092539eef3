"""The gate of a gated multilayer perceptron; its three linear layers are linear layers."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class GatedProduct:
    """act(X W_gateᵀ) * (X W_upᵀ): one multiplication per element of the intermediate state.

        vector_flops = elements

    Both factors come from other modules (the activation and the up projection), the product goes to
    the down projection: 2 elements in, 1 out. The three projections and the activation of the gated
    perceptron down(act(gate(x)) * up(x)) are layers of their own.
    """

    name: ClassVar[str] = "gated_mlp"
    title: ClassVar[str] = "Gated multilayer perceptron: the product with the gate"
    source: ClassVar[str] = "Shazeer 2020, GLU Variants Improve Transformer, equation 6"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        return LayerCosts(
            vector_flops={"elementwise": self.elements},
            input_bytes=2 * self.elements * self.item_bytes,
            output_bytes=self.elements * self.item_bytes,
        )
