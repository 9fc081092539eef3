"""Define the interface of layers: a layer is a formula that returns the costs of one call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    runtime_checkable,
)

import sympy

from costproof.ledger.capture import FormulaDoc
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import TRAFFIC, UNFUSED, Metric
from costproof.ledger.node import CostNode

Size: TypeAlias = int | sympy.Expr
"""A dimension or a count: an exact integer or an expression in symbols."""

_NONE: Mapping[str, Size] = {}
_REQUIRED: Final[tuple[Metric, ...]] = (
    "weight_bytes", "buffer_bytes", "weight_read_bytes", "input_bytes", "output_bytes",
)  # fmt: skip
"""Metrics that are unknown unless a layer gives them."""


_MISSING: Final = sympy.Dummy("missing")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights W [rows, columns] of a linear layer Y = X Wᵀ + c or of a table; ``count`` matrices of that shape.

    A checkpoint may store them quantised; other parameters it stores as they are.
    """

    rows: Size
    columns: Size
    bias: bool = False
    kind: Literal["Linear", "Embedding", "Expert"] = "Linear"
    """Kind of the module that owns them; ``Expert``: they are a stack, with a matrix for each expert."""
    count: Size = 1
    read: Size | None = None
    """How many of them a call reads; ``None``: all of them, or rows of a table."""
    joined: bool = False
    """Whether the rows are those of two matrices of a stack, gate and up projection."""

    @property
    def elements(self) -> Size:
        """Return the number of all weights and biases."""
        return self.count * (self.rows * self.columns + (self.rows if self.bias else 0))


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind in a call of a layer."""

    payload_bytes: Size
    """Bytes of the full tensors."""
    sent_bytes: Size
    """Bytes that the rank sends; see :mod:`costproof.ledger.mesh`."""
    messages: Size = 1
    """Number of collectives."""


_NO_EXCHANGE: Mapping[str, Exchange] = {}


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of one call of a layer, without child modules; metrics as in :mod:`costproof.ledger.metrics`.

    If ``intermediate_bytes`` is given, the bytes of the layer are complete, and those that are not given are 0.
    Otherwise
    bytes that are not given are unknown, and so are their sums.
    """

    params: Size = 0
    """Elements of the layer's own parameters."""
    params_active: Size | None = None
    """Elements that one token passes (default: all of them)."""
    weight_bytes: Size = _MISSING
    buffer_bytes: Size = _MISSING
    """Bytes of the buffers that the layer's module registers, read or not, in their own dtype."""
    matrices: tuple[Matrix, ...] = ()
    """Weights and biases of linear layers, and embedding tables, which a quantised checkpoint may store otherwise."""
    persistent_elements: Size = 0
    """Elements of buffers that a checkpoint stores too."""
    persistent_bytes: Size = 0
    """Part of :attr:`buffer_bytes` that a checkpoint stores too."""
    weight_read_bytes: Size = _MISSING
    flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Headline FLOPs by operator kind, 2 per multiply-accumulate."""
    vector_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Elementwise and reduction FLOPs by operator kind."""
    kept_scores: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Pairs of a query and a key that the masks leave, in all heads, by operator kind."""
    hidden_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Part of :attr:`flops` for scores that a mask hides."""
    skippable_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Part of the other :attr:`flops` that another algorithm for the same result skips."""
    float32_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Part of :attr:`flops` in float32 products, whatever the dtype of the run."""
    exchanges: Mapping[str, Exchange] = field(default_factory=lambda: _NO_EXCHANGE)
    """Collectives with other ranks by operator kind."""
    input_bytes: Size = _MISSING
    buffer_read_bytes: Size = 0
    """Part of the input bytes from buffers of the model, which no layer computes."""
    output_bytes: Size = _MISSING
    kv_read_bytes: Size = 0
    kv_cache_bytes: Size = 0
    intermediate_bytes: Size | None = None
    """Further bytes that move if every operator runs separately: results that the layer's operators write for each
    other, and repeated reads. 0 for a single operator; ``None`` if not derived."""

    shared_weight_bytes: Size = 0
    """Part of the weight bytes read that another layer of the stage reads and counts too."""
    unknown: frozenset[Metric] = frozenset()
    """Metrics that the layer does not give (computed)."""

    def __post_init__(self) -> None:
        missing = {metric for metric in _REQUIRED if getattr(self, metric) is _MISSING}
        for metric in missing:
            object.__setattr__(self, metric, 0)
        unknown = self.unknown | missing | {UNFUSED} if self.intermediate_bytes is None else frozenset[Metric]()
        object.__setattr__(self, "unknown", unknown)

    @property
    def lasting_bytes(self) -> Size:
        """Return the bytes that any execution must move: parameters, buffers, cache before and after."""
        read = self.weight_read_bytes - self.shared_weight_bytes + self.buffer_read_bytes
        return read + self.kv_read_bytes + self.kv_cache_bytes

    def with_cache(self, share: Size) -> LayerCosts:
        """Return the costs with cache bytes times ``share``: bytes of the cache format over those in the run dtype."""
        if share == 1:
            return self
        read, appended = (sympy.expand(share * size) for size in (self.kv_read_bytes, self.kv_cache_bytes))
        return replace(self, kv_read_bytes=read, kv_cache_bytes=appended)

    @property
    def active(self) -> Size:
        """Return ``params_active``, or ``params`` if that is not given."""
        return self.params if self.params_active is None else self.params_active

    @property
    def unfused_bytes(self) -> Size | None:
        """Return the bytes moved if every operator runs separately; ``None`` if the layer does not derive them."""
        return (
            None
            if self.intermediate_bytes is None
            else sum((getattr(self, metric) for metric in TRAFFIC), self.intermediate_bytes)
        )


@runtime_checkable
class Layer(Protocol):
    """A formula: a frozen dataclass of sizes whose docstring derives its costs.

    Reports print the docstring as the derivation.
    """

    name: ClassVar[str]
    """Registered name; cost nodes have it as their owner."""
    title: ClassVar[str]
    source: ClassVar[str]
    """Origin of the formula: a paper, or code by name."""

    def __hash__(self) -> int:
        """Hash by value, so that equal layers are computed once."""

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""


L = TypeVar("L")

_BY_NAME: dict[str, type[Layer]] = {}


@dataclass_transform(frozen_default=True)
def layer(cls: type[L]) -> type[L]:
    """Turn a class of sizes into a :class:`Layer`: a frozen dataclass, registered under its ``name``.

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


def find_layer(name: str) -> type[Layer]:
    """Return the layer class registered under a name, which cost nodes have as their owner.

    Raises:
        BadInput: no layer of that name is loaded.
    """
    if name not in _BY_NAME:
        raise BadInput("no such layer", where=name, expected="one of " + ", ".join(sorted(_BY_NAME)))
    return _BY_NAME[name]


@lru_cache(maxsize=8192)
def costs_of(layer: Layer) -> LayerCosts:
    """Return ``layer.costs()``, memoized, so that equal layers are computed once."""
    return layer.costs()


def formula_docs(nodes: Iterable[CostNode]) -> dict[str, FormulaDoc]:
    """Return the title, derivation and source of each layer that nodes come from, by its name.

    Raises:
        BadInput: a node names a layer that is not loaded.
    """
    docs = {}
    for name in sorted({n.owner for n in nodes} - {""}):
        layer = find_layer(name)
        docs[name] = FormulaDoc(title=layer.title, derivation=inspect.getdoc(layer) or "", source=layer.source)
    return docs
