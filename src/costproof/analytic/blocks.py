"""Groups of modules that occur in more than one place: perceptrons, plain and gated."""

from __future__ import annotations

from costproof.analytic.compose import Part
from costproof.analytic.costs import Size
from costproof.analytic.gated_mlp import GatedProduct
from costproof.analytic.linear import Linear
from costproof.analytic.mlp import Activation


def mlp(role: str, *, rows: Size, width: Size, inner: Size, function: str, b: Size) -> tuple[Part, ...]:
    """down(act(up(x))) with biases."""
    return (
        Part(role),
        Part(f"{role}.up", (Linear(rows, width, inner, b),)),
        Part(f"{role}.activation", (Activation(rows * inner, function, b),)),
        Part(f"{role}.down", (Linear(rows, inner, width, b),)),
    )


def gated_mlp(
    role: str, *, rows: Size, width: Size, inner: Size, function: str, b: Size, bias: bool
) -> tuple[Part, ...]:
    """down(act(gate(x)) * up(x))."""
    return (
        Part(role, (GatedProduct(rows * inner, b),)),
        Part(f"{role}.gate", (Linear(rows, width, inner, b, bias),)),
        Part(f"{role}.up", (Linear(rows, width, inner, b, bias),)),
        Part(f"{role}.activation", (Activation(rows * inner, function, b),)),
        Part(f"{role}.down", (Linear(rows, inner, width, b, bias),)),
    )
