"""Cost formulas of residual additions, layer scales, soft caps, activations, and the product with a gate."""

from __future__ import annotations

from typing import ClassVar, Final

from costproof.analytic.costs import LayerCosts, Size, layer
from costproof.ledger.errors import BadInput


@layer
class Residual:
    """A chain of residual additions, x + f₁ + f₂ + …, where each branch fᵢ comes from another module.

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
    """Soft cap c tanh(x / c): a division, tanh and a multiplication per element.

    vector_flops = 3 elements

    Unfused, what the first two operators write is read by the next: 4 elements more.
    """

    name: ClassVar[str] = "soft_cap"
    title: ClassVar[str] = "Soft cap of the logits"
    source: ClassVar[str] = "Gemma Team 2024, Gemma 2, section 2.2; Bello et al. 2016, equation 16"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        moved = self.elements * self.item_bytes
        return LayerCosts(
            vector_flops={"elementwise": 3 * self.elements},
            input_bytes=moved,
            output_bytes=moved,
            intermediate_bytes=4 * moved,
        )


ACTIVATION_FLOPS: Final[dict[str, int]] = {
    "relu": 1,
    "tanh": 1,
    "sigmoid": 1,
    "silu": 2,
    "swish": 2,
    "quick_gelu": 3,
    "gelu": 5,
    "gelu_new": 8,
    "gelu_pytorch_tanh": 8,
}
"""Primitive operations per element of each activation function."""

WRITTEN_OUT: Final[dict[str, int]] = {"quick_gelu": 7, "gelu_new": 18}
"""Elements read and written per element by activation functions that run as several operators."""


@layer
class Activation:
    """An activation function applied to every element.

    Operations per element, as the function is written in primitives:
    relu, tanh, sigmoid: 1; silu = x sigmoid(x): 2; quick_gelu = x sigmoid(1.702 x): 3;
    gelu = x * 0.5 * (1 + erf(x / sqrt 2)): a division, erf, an addition, two multiplications: 5;
    gelu_new and gelu_pytorch_tanh = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))): a cube, two additions,
    tanh, four multiplications: 8, in primitives (the first) or fused (the second).

        vector_flops = operations x elements

    Most are one operator: an element in, one out. quick_gelu is three: a product, the sigmoid, the product of both,
    2 + 2 + 3 elements read and written. gelu_new is eight: 0.5 x, x³, its product, the sum with x, its product, tanh,
    the sum with 1, the product of both factors, 2 + 2 + 2 + 3 + 2 + 2 + 2 + 3.
    """

    name: ClassVar[str] = "activation"
    title: ClassVar[str] = "Activation function"
    source: ClassVar[str] = "Hendrycks and Gimpel 2016, Gaussian Error Linear Units; transformers.activations"

    elements: Size
    function: str
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call.

        Raises:
            BadInput: no formula for this function.
        """
        operations = ACTIVATION_FLOPS.get(self.function)
        if operations is None:
            raise BadInput(
                "no formula for this activation function",
                expected="one of " + ", ".join(sorted(ACTIVATION_FLOPS)),
                got=self.function,
            )
        return LayerCosts(
            vector_flops={"activation": operations * self.elements},
            input_bytes=self.elements * self.item_bytes,
            output_bytes=self.elements * self.item_bytes,
            intermediate_bytes=(WRITTEN_OUT.get(self.function, 2) - 2) * self.elements * self.item_bytes,
        )


@layer
class GatedProduct:
    """Product act(X W_gateᵀ) * (X W_upᵀ): one multiplication per element of the intermediate state.

        vector_flops = elements

    Both factors come from other modules (the activation and the up projection), the product goes to
    the down projection: 2 elements in, 1 out. The three projections and the activation of the gated
    MLP down(act(gate(x)) * up(x)) are layers of their own.
    """

    name: ClassVar[str] = "gated_mlp"
    title: ClassVar[str] = "Gated MLP: the product with the gate"
    source: ClassVar[str] = "Shazeer 2020, GLU Variants Improve Transformer, equation 6"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        return LayerCosts(
            vector_flops={"elementwise": self.elements},
            input_bytes=2 * self.elements * self.item_bytes,
            output_bytes=self.elements * self.item_bytes,
            intermediate_bytes=0,
        )
