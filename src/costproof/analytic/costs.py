"""What a formula gives: the costs of one call of one module's own operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import sympy

Size: TypeAlias = int | sympy.Expr
"""A dimension or a count: an exact integer or an expression in symbols."""

_NONE: Mapping[str, Size] = {}


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of one call of a layer, children excluded; the metrics are those of ``ledger.metrics``."""

    params: Size = 0
    """Elements of the layer's own parameters."""
    params_active: Size | None = None
    """Elements that one token passes; ``None``: all of them."""
    weight_bytes: Size = 0
    weight_read_bytes: Size = 0
    flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Headline FLOPs by operator kind, 2 per multiply-accumulate."""
    vector_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Elementwise and reduction FLOPs by operator kind."""
    input_bytes: Size = 0
    output_bytes: Size = 0
    kv_cache_bytes: Size = 0

    @property
    def active(self) -> Size:
        """``params_active``, filled in."""
        return self.params if self.params_active is None else self.params_active


@runtime_checkable
class Layer(Protocol):
    """A formula: a frozen dataclass of sizes whose docstring derives its costs.

    The docstring is what a reader of a report gets as the derivation.
    """

    name: ClassVar[str]
    """The registered name; cost nodes carry it as their owner."""
    title: ClassVar[str]
    source: ClassVar[str]
    """Where the formula comes from: a paper, or code by name."""

    def __hash__(self) -> int:
        """Equal layers are computed once."""
        ...

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        ...


@lru_cache(maxsize=8192)
def costs_of(layer: Layer) -> LayerCosts:
    """``layer.costs()``, once for equal layers, so that they share their expressions."""
    return layer.costs()
