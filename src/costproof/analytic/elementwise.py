"""Cost residual additions, layer scales and soft caps."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class Residual:
    """A chain of additions, x + f₁ + f₂ + …, where each branch fᵢ comes from another module.

    One addition per element and branch:

        vector_flops = branches elements

    In come x and every branch; out goes every partial sum, because the next branch is computed from
    it: (branches + 1) elements in, branches elements out. Where a norm follows each addition (not
    ``chained``), x comes back from another module every time: 2 branches elements in. Unfused, every addition
    reads two summands: branches - 1 elements more in a chain. A transformer
    layer has two branches (attention, MLP), three with cross attention, a mixture of experts one
    (routed experts + shared experts).
    """

    name: ClassVar[str] = "residual"
    title: ClassVar[str] = "Residual additions"
    source: ClassVar[str] = "He et al. 2015, Deep Residual Learning, equation 1"

    elements: Size
    branches: int
    item_bytes: Size
    chained: bool = True

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        incoming = self.branches + 1 if self.chained else 2 * self.branches
        return LayerCosts(
            vector_flops={"elementwise": self.branches * self.elements},
            input_bytes=incoming * self.elements * self.item_bytes,
            output_bytes=self.branches * self.elements * self.item_bytes,
            intermediate_bytes=(2 * self.branches - incoming) * self.elements * self.item_bytes,
        )


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
        """Return the costs of one call."""
        elements = self.rows * self.width * self.item_bytes
        return LayerCosts(
            params=self.width,
            weight_bytes=self.width * self.item_bytes,
            weight_read_bytes=self.width * self.item_bytes,
            vector_flops={"elementwise": self.rows * self.width},
            input_bytes=elements,
            output_bytes=elements,
            intermediate_bytes=0,
        )


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
        """Return the costs of one call."""
        moved = self.elements * self.item_bytes
        return LayerCosts(
            vector_flops={"elementwise": 3 * self.elements},
            input_bytes=moved,
            output_bytes=moved,
            intermediate_bytes=4 * moved,
        )
