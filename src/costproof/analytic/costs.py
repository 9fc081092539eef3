"""A formula and what it returns: the costs of one call of one module's own operators."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar, cast, dataclass_transform, runtime_checkable

import sympy

from costproof.ledger.capture import FormulaDoc
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import TRAFFIC, UNFUSED, Metric
from costproof.ledger.node import CostNode

Size: TypeAlias = int | sympy.Expr
"""A dimension or a count: an exact integer or an expression in symbols."""

_NONE: Mapping[str, Size] = {}
_SAID: Final[tuple[Metric, ...]] = (
    "weight_bytes", "buffer_bytes", "weight_read_bytes", "input_bytes", "output_bytes",
)  # fmt: skip
"""What a layer must say, or it is unknown."""


_UNSAID: Final = sympy.Dummy("unsaid")


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of one call of a layer, children excluded; the metrics are those of ``ledger.metrics``.

    A layer that gives ``between`` has worked out all its bytes: those that it does not give are 0. Of one that does
    not, the bytes that it does not give are unknown, and so are their sums.
    """

    params: Size = 0
    """Elements of the layer's own parameters."""
    params_active: Size | None = None
    """Elements that one token passes; ``None``: all of them."""
    weight_bytes: Size = _UNSAID
    buffer_bytes: Size = _UNSAID
    """Bytes of the buffers that the layer's module registers, read or not, in their own dtype."""
    weight_read_bytes: Size = _UNSAID
    flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Headline FLOPs by operator kind, 2 per multiply-accumulate."""
    vector_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Elementwise and reduction FLOPs by operator kind."""
    skippable_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Of :attr:`flops`, those that another implementation of the same result leaves out."""
    float32_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Of :attr:`flops`, those of products in float32 whatever the dtype of the run."""
    input_bytes: Size = _UNSAID
    buffer_read_bytes: Size = 0
    """Of those, bytes of the model's buffers, which no other layer makes."""
    output_bytes: Size = _UNSAID
    kv_read_bytes: Size = 0
    kv_cache_bytes: Size = 0
    between: Size | None = None
    """Bytes that move besides all these where each of its operators runs on its own: what one of them writes and
    another reads, and what is read again. 0 for a single operator; ``None``: not worked out."""

    again_bytes: Size = 0
    """Of the parameters that are read, bytes that another layer of the stage reads too, and counts."""
    unknown: frozenset[Metric] = frozenset()
    """The metrics that it does not give; computed."""

    def __post_init__(self) -> None:
        unsaid = {metric for metric in _SAID if getattr(self, metric) is _UNSAID}
        for metric in unsaid:
            object.__setattr__(self, metric, 0)
        unknown = self.unknown | unsaid | {UNFUSED} if self.between is None else frozenset[Metric]()
        object.__setattr__(self, "unknown", unknown)

    @property
    def lasting_bytes(self) -> Size:
        """Bytes that move however a stage is carried out: parameters, buffers, and the cache before it and after it."""
        read = self.weight_read_bytes - self.again_bytes + self.buffer_read_bytes
        return read + self.kv_read_bytes + self.kv_cache_bytes

    @property
    def active(self) -> Size:
        """``params_active``, filled in."""
        return self.params if self.params_active is None else self.params_active

    @property
    def unfused_bytes(self) -> Size | None:
        """Bytes that its operators move where each runs on its own; ``None``: not worked out."""
        return None if self.between is None else sum((getattr(self, metric) for metric in TRAFFIC), self.between)


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


L = TypeVar("L")

_BY_NAME: dict[str, type[Layer]] = {}


@dataclass_transform(frozen_default=True)
def layer(cls: type[L]) -> type[L]:
    """Make a class of sizes a :class:`Layer`: a frozen dataclass that is found by its ``name``.

    Raises:
        BadInput: another class has the name.
    """
    made: Any = dataclass(frozen=True, slots=True)(cls)
    other = _BY_NAME.setdefault(made.name, made)
    if _address(other) != _address(made):
        raise BadInput(
            "two layers have the same name",
            where=f"layer {made.name!r}",
            expected=f"the one of {_address(other)}",
            got=f"another one of {_address(made)}",
            fix="rename one of them",
        )
    return cast(type[L], made)


def _address(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def layer_named(name: str) -> type[Layer]:
    """The layer of that name; a node says by name which formula it comes from.

    Raises:
        BadInput: no such layer is loaded.
    """
    if name not in _BY_NAME:
        raise BadInput("no such layer", where=name, expected="one of " + ", ".join(sorted(_BY_NAME)))
    return _BY_NAME[name]


@lru_cache(maxsize=8192)
def costs_of(layer: Layer) -> LayerCosts:
    """``layer.costs()``, once for equal layers, so that they share their expressions."""
    return layer.costs()


def formula_docs(nodes: Iterable[CostNode]) -> dict[str, FormulaDoc]:
    """Title, derivation and source of the layers that nodes come from, by name.

    Raises:
        BadInput: a node names a layer that is not loaded.
    """
    docs = {}
    for name in sorted({n.owner for n in nodes} - {""}):
        layer = layer_named(name)
        docs[name] = FormulaDoc(title=layer.title, derivation=inspect.getdoc(layer) or "", source=layer.source)
    return docs
