"""What follows attention in a layer: an MLP, plain or gated, or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.analytic.compose import CONTAINER, Part
from costproof.analytic.costs import Layer, Size
from costproof.analytic.experts import ClampedExperts, ExpertLoop, Experts, LoopedExperts
from costproof.analytic.linear import Linear
from costproof.analytic.mlp import Activation, GatedProduct
from costproof.analytic.residual import Residual
from costproof.analytic.router import PLAIN, Router, Routing


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(act(up(x))), or gated down(act(gate(x)) * up(x)).

    Roles: ``.gate``, ``.up``, ``.activation``, ``.down`` below its own.
    """

    width: Size
    inner: Size
    function: str
    """See :data:`costproof.analytic.mlp.ACTIVATION_FLOPS`."""
    gated: bool = False
    bias: bool = True
    """Of all its linear layers."""
    activation_module: bool = True
    """Whether the activation is a module; a function runs in the MLP itself."""

    def parts(self, role: str, rows: Size, b: Size) -> tuple[Part, ...]:
        """Its modules on ``rows`` tokens, ``b`` bytes an element."""
        elements = rows * self.inner
        up, activation = Linear(rows, self.width, self.inner, b, self.bias), Activation(elements, self.function, b)
        own: tuple[Layer, ...] = () if self.activation_module else (activation,)
        own += (GatedProduct(elements, b),) if self.gated else ()
        return (
            Part(role, own or (CONTAINER,)),
            *((Part(f"{role}.gate", (up,)),) if self.gated else ()),
            Part(f"{role}.up", (up,)),
            *((Part(f"{role}.activation", (activation,)),) if self.activation_module else ()),
            Part(f"{role}.down", (Linear(rows, self.inner, self.width, b, self.bias),)),
        )


@dataclass(frozen=True, slots=True)
class Mixture:
    """Gated experts of which every token passes ``top_k``, and shared experts that all tokens pass.

    Roles: its own, and of the same layer ``router``, ``experts``, ``experts.activation``, and
    ``shared`` with the parts of an MLP.
    """

    width: Size
    inner: Size
    """Inner width of one routed expert."""
    experts: Size
    top_k: Size
    function: str
    shared: Size = 0
    """Inner width of all shared experts together; 0: there are none."""
    routing: Routing = PLAIN
    clamped: bool = False
    """Whether experts have biases and a clamped gate of their own, without a module for the activation."""
    batched: bool = False
    """Whether the kernel gathers weights for every row (see :class:`~costproof.analytic.experts.Experts`)."""
    looped: bool = False
    """Whether every expert is a module, run in a loop; else one kernel runs all on stacked weights."""

    def parts(self, role: str, rows: Size, b: Size) -> tuple[Part, ...]:
        """Its modules on ``rows`` tokens, ``b`` bytes an element."""
        layer = role.rpartition(".")[0]
        router = Router(rows, self.width, self.experts, self.top_k, b, self.routing)
        shared = Mlp(self.width, self.shared, self.function, gated=True, bias=False)
        return (
            Part(role, self._around(rows, b)),
            Part(f"{layer}.router", (router,)),
            *self._experts(f"{layer}.experts", rows, b),
            *(shared.parts(f"{layer}.shared", rows, b) if self.shared != 0 else ()),
        )

    def _around(self, rows: Size, b: Size) -> tuple[Layer, ...]:
        if self.looped:
            return (ExpertLoop(rows, self.width, self.top_k, b, shared=self.shared != 0),)
        return (Residual(rows * self.width, 1, b),) if self.shared != 0 else (CONTAINER,)

    def _experts(self, role: str, rows: Size, b: Size) -> tuple[Part, ...]:
        if self.looped:
            each = LoopedExperts(rows, self.width, self.inner, self.experts, self.top_k, b, self.function)
            return (Part(role, (each,), group=True),)
        if self.clamped:
            return (
                Part(role, (ClampedExperts(rows, self.width, self.inner, self.experts, self.top_k, b, self.batched),)),
            )
        item = b if self.routing.narrow else 4
        return (
            Part(role, (Experts(rows, self.width, self.inner, self.experts, self.top_k, b, item, self.batched),)),
            Part(f"{role}.activation", (Activation(rows * self.top_k * self.inner, self.function, b),)),
        )
