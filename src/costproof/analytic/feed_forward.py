"""Combine layers into the feed-forward part of a transformer layer: an MLP or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costproof.analytic.compose import CONTAINER, ModulePart
from costproof.analytic.costs import Layer, Size
from costproof.analytic.elementwise import Activation, GatedProduct, Residual
from costproof.analytic.experts import PLAIN, ClampedExperts, ExpertLoop, Experts, LoopedExperts, Router, RoutingRule
from costproof.analytic.linear import Linear


@dataclass(frozen=True, slots=True)
class Mlp:
    """MLP: down(act(up(x))), or if gated, down(act(gate(x)) * up(x)).

    Roles: ``.gate``, ``.up``, ``.activation``, ``.down`` below its own.
    """

    width: Size
    inner: Size
    function: str
    """Activation function, a key of :data:`costproof.analytic.elementwise.ACTIVATION_FLOPS`."""
    gated: bool = False
    bias: bool = True
    """Whether the linear layers of the MLP have biases."""
    activation_module: bool = True
    """Whether the activation runs in its own module; otherwise the MLP calls a function."""

    def parts(self, role: str, rows: Size, b: Size) -> tuple[ModulePart, ...]:
        """Return the modules of the MLP with their formulas, for ``rows`` tokens and ``b`` bytes per element."""
        elements = rows * self.inner
        up, activation = Linear(rows, self.width, self.inner, b, self.bias), Activation(elements, self.function, b)
        own: tuple[Layer, ...] = () if self.activation_module else (activation,)
        own += (GatedProduct(elements, b),) if self.gated else ()
        return (
            ModulePart(role, own or (CONTAINER,)),
            *((ModulePart(f"{role}.gate", (up,)),) if self.gated else ()),
            ModulePart(f"{role}.up", (up,)),
            *((ModulePart(f"{role}.activation", (activation,)),) if self.activation_module else ()),
            ModulePart(f"{role}.down", (Linear(rows, self.inner, self.width, b, self.bias),)),
        )


@dataclass(frozen=True, slots=True)
class ExpertMixture:
    """Mixture of experts: each token passes ``top_k`` gated routed experts and all shared experts.

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
    """Total inner width of the shared experts; 0 without shared experts."""
    routing: RoutingRule = PLAIN
    clamped: bool = False
    """Whether experts have biases and a clamped gate, which has no activation module."""
    batched: bool = False
    """Whether the kernel gathers weights for every row (see :class:`~costproof.analytic.experts.Experts`)."""
    held: Size | None = None
    """Number of experts on this device (default: all)."""
    batches: Size = 1
    """Number of tokens that the experts on this device get, divided by the number that the rank routes."""
    exchanged: tuple[Size, Size] | None = None
    """(token, expert) pairs that the rank sends to and gets from others, if it exchanges pairs instead of tokens."""
    slices: Size = 1
    """Number of slices into which ranks along ``tp`` divide the tokens they share, each to send the pairs of one."""
    sliced: Size | None = None
    """Number of tokens in the rank's slice; ``None`` if all slices are equal."""
    touched: Size | None = None
    """Number of experts whose weights a call reads, if the pairs that arrive give it; ``None``: min(experts, rows)."""
    looped: bool = False
    """Whether each expert is a module, run in a loop; otherwise one kernel runs all of them on stacked weights."""

    def parts(self, role: str, rows: Size, b: Size) -> tuple[ModulePart, ...]:
        """Return the modules of the mixture with their formulas, for ``rows`` tokens and ``b`` bytes per element."""
        layer = role.rpartition(".")[0]
        router = Router(rows, self.width, self.experts, self.top_k, b, self.routing)
        shared = Mlp(self.width, self.shared, self.function, gated=True, bias=False)
        return (
            ModulePart(role, self._around(rows, b)),
            ModulePart(f"{layer}.router", (router,)),
            *self._experts(f"{layer}.experts", rows * self.batches, b),
            *(shared.parts(f"{layer}.shared", rows, b) if self.shared != 0 else ()),
        )

    def _around(self, rows: Size, b: Size) -> tuple[Layer, ...]:
        if self.looped:
            return (ExpertLoop(rows, self.width, self.top_k, b, shared=self.shared != 0),)
        return (Residual(rows * self.width, 1, b),) if self.shared != 0 else (CONTAINER,)

    def _experts(self, role: str, rows: Size, b: Size) -> tuple[ModulePart, ...]:
        held = self.experts if self.held is None else self.held
        if self.exchanged is not None:
            sent, got = self.exchanged
            own = rows / self.slices if self.sliced is None else self.sliced
            pairs = replace(self, top_k=1, exchanged=None, routing=replace(self.routing, narrow=True))
            first, *others = pairs._experts(role, own * self.top_k - sent + got, b)
            stack, *more = first.layers
            assert isinstance(stack, Experts | ClampedExperts)
            return (replace(first, layers=(replace(stack, chosen=self.top_k, touched=self.touched), *more)), *others)
        if self.looped:
            each = LoopedExperts(rows, self.width, self.inner, self.experts, self.top_k, b, self.function)
            return (ModulePart(role, (each,), group=True),)
        if self.clamped:
            return (
                ModulePart(role, (ClampedExperts(rows, self.width, self.inner, held, self.top_k, b, self.batched),)),
            )
        item = b if self.routing.narrow else 4
        return (
            ModulePart(role, (Experts(rows, self.width, self.inner, held, self.top_k, b, item, self.batched),)),
            ModulePart(f"{role}.activation", (Activation(rows * self.top_k * self.inner, self.function, b),)),
        )
