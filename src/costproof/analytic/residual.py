"""Residual additions."""

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
        """The costs of one call."""
        incoming = self.branches + 1 if self.chained else 2 * self.branches
        return LayerCosts(
            vector_flops={"elementwise": self.branches * self.elements},
            input_bytes=incoming * self.elements * self.item_bytes,
            output_bytes=self.branches * self.elements * self.item_bytes,
            between=(2 * self.branches - incoming) * self.elements * self.item_bytes,
        )
