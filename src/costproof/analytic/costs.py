"""Define the interface of layers: each layer is a formula that returns the costs of one call."""

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
"""Metrics that are unknown unless the layer states them."""


_MISSING: Final = sympy.Dummy("missing")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights W [rows, columns] of a linear layer Y = X Wᵀ + c, or of a table; ``count`` matrices of this shape.

    A checkpoint may store them quantised; other parameters it stores as they are.
    """

    rows: Size
    columns: Size
    bias: bool = False
    kind: Literal["Linear", "Embedding", "Expert"] = "Linear"
    """Kind of the module that owns the weights; ``Expert`` is a stack with a matrix for each expert."""
    count: Size = 1
    read: Size | None = None
    """Number of the matrices that a call reads; ``None``: all of them, or only rows of a table."""
    joined: bool = False
    """Whether rows of two matrices, gate and up projection, are stacked in each matrix."""
    digits: int | None = None
    """Number of digits of the rows and columns, for a format that writes them down; ``None``: unknown."""

    @property
    def elements(self) -> Size:
        """Return the number of weight and bias elements of all matrices."""
        return self.count * (self.rows * self.columns + (self.rows if self.bias else 0))


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind in one call of a layer."""

    payload_bytes: Size
    """Bytes of the full tensors of all collectives."""
    sent_bytes: Size
    """Bytes that the rank sends; see :mod:`costproof.ledger.mesh`."""
    messages: Size = 1
    """Number of collectives."""


_NO_EXCHANGE: Mapping[str, Exchange] = {}


@dataclass(frozen=True, slots=True)
class CacheShares:
    """Bytes of a cache in its format for each byte in the dtype of the run: of all of it, and of parts of latents."""

    whole: Size = 1
    latents: Size = 1
    """Of the latents in an MLA cache."""
    rotated: Size = 1
    """Of the rotated keys beside them."""


IN_DTYPE_OF_RUN: Final = CacheShares()


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of one call of a layer, without child modules; metrics are those of :mod:`costproof.ledger.metrics`.

    If ``intermediate_bytes`` is given, the bytes of the layer are complete, and those that are not given are 0.
    Otherwise
    bytes that are not given are unknown, and so are their sums.
    """

    params: Size = 0
    """Number of elements of the layer's own parameters."""
    params_active: Size | None = None
    """Number of parameter elements that one token meets (default: all of them)."""
    weight_bytes: Size = _MISSING
    buffer_bytes: Size = _MISSING
    """Bytes of all buffers that the layer's module registers, read or not, in their own dtypes."""
    matrices: tuple[Matrix, ...] = ()
    """Weights and biases of linear layers, and embedding tables: the parameters that a checkpoint may quantise."""
    persistent_elements: Size = 0
    """Number of elements of the buffers that a checkpoint stores too."""
    persistent_bytes: Size = 0
    """Part of :attr:`buffer_bytes` of the buffers that a checkpoint stores too."""
    weight_read_bytes: Size = _MISSING
    flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Headline FLOPs by operator kind, 2 per multiply-accumulate."""
    vector_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Element-wise and reduction FLOPs by operator kind."""
    kept_scores: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Number of query-key pairs that the masks keep, in all heads, by operator kind."""
    hidden_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Part of :attr:`flops` for scores that a mask hides."""
    skippable_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Part of :attr:`flops`, hidden scores aside, that another algorithm for the same result skips."""
    float32_flops: Mapping[str, Size] = field(default_factory=lambda: _NONE)
    """Part of :attr:`flops` of products in float32, whatever the dtype of the run is."""
    exchanges: Mapping[str, Exchange] = field(default_factory=lambda: _NO_EXCHANGE)
    """Collectives with other ranks by operator kind."""
    input_bytes: Size = _MISSING
    buffer_read_bytes: Size = 0
    """Part of the input bytes that are read from buffers of the model rather than computed by a layer."""
    output_bytes: Size = _MISSING
    kv_read_bytes: Size = 0
    kv_read_part: Literal["whole", "latents", "rotated"] = "whole"
    """Part of the cache that is read, as in :class:`CacheShares`."""
    kv_cache_bytes: Size = 0
    intermediate_bytes: Size | None = None
    """Further bytes that move if every operator runs separately: results passed between the layer's operators, and
    repeated reads. 0 for a single operator; ``None`` if not derived."""

    shared_weight_bytes: Size = 0
    """Part of the weight bytes read that another layer of the stage reads and counts as well."""
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

    def with_cache(self, shares: CacheShares) -> LayerCosts:
        """Return the costs with cache bytes in a format of their own."""
        if shares == IN_DTYPE_OF_RUN:
            return self
        read = sympy.expand(getattr(shares, self.kv_read_part) * self.kv_read_bytes)
        return replace(self, kv_read_bytes=read, kv_cache_bytes=sympy.expand(shares.whole * self.kv_cache_bytes))

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
    """A formula: a frozen dataclass of sizes, whose docstring derives its costs.

    Reports print the docstring as the derivation.
    """

    name: ClassVar[str]
    """Name under which the layer is registered, which is the owner of its cost nodes."""
    title: ClassVar[str]
    source: ClassVar[str]
    """Source of the formula: a paper, or code by name."""

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
    """Return the layer class registered under a name, which is the owner of cost nodes.

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
    """Return the title, derivation and source of each layer that owns nodes, by its name.

    Raises:
        BadInput: a node names a layer that is not loaded.
    """
    docs = {}
    for name in sorted({n.owner for n in nodes} - {""}):
        layer = find_layer(name)
        docs[name] = FormulaDoc(title=layer.title, derivation=inspect.getdoc(layer) or "", source=layer.source)
    return docs
