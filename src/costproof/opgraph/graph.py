"""Represent an executed or exported graph as operator calls on shaped values.

Both graph sources, ``torch.export`` and TorchLens, are converted to this form and costed by the same rules. Shapes are
integers (a trace) or sympy expressions (an export with symbolic sizes). The module needs no torch, so rules can be
tested on hand-made calls. Graphs convert to plain JSON data and back, with each tensor stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import sympy

from costproof.algebra.symbols import parse, text

Size: TypeAlias = int | sympy.Expr


_HANDED_ON: Final = frozenset({"identity"})
"""Operators that a trace records where a module returns its argument unchanged."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: an input, a parameter, a buffer, or the result of an operator."""

    id: str
    shape: tuple[Size, ...]
    dtype: str
    """Name without the ``torch.`` prefix, such as ``bfloat16``."""
    origin: str = "op"
    """Origin of the tensor: ``op``, ``input``, ``cache`` (input from the cache), ``param``, ``buffer`` or ``const``."""
    name: str = ""
    """Full name of a parameter or buffer, as in ``named_parameters`` of the root module."""

    @property
    def floating(self) -> bool:
        """Whether the tensor is floating point; only these tensors are activations and do FLOPs."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True, slots=True)
class CausalMask:
    """Content of a mask input [.., queries, keys]: causal or windowed, last query aligned with last key."""

    window: int = 0
    """Number of keys that a query sees up to its own position; 0: all of them."""


AUTOCAST: Final = "autocast"
"""Key in ``OpCall.attrs`` with the dtype that autocast casts the operator's products to."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an operator."""

    label: str
    """Unique name in the graph: node name of the export, or label of TorchLens."""
    name: str
    """Operator name as the source writes it: ``aten.linear.default``, ``scaled_dot_product_attention``."""
    module: str
    """Path of the innermost module that runs the operator; empty for the root."""
    call: int
    """Number of the module's call, from 1."""
    tensors: tuple[Value, ...]
    """Tensor arguments in signature order, including parameters, with lists flattened; a tensor
    that is passed twice occurs twice.
    """
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments that cost rules need, by their names in the operator's signature: ``equation``, ``mode``,
    ``transposed``, ``dim``, ``other`` (a scalar second operand) …
    """
    names: Mapping[str, Value] = field(default_factory=dict)
    """Tensor arguments by name in the operator's signature, such as ``attn_mask``, if the source records names."""

    def reading(self, change: Callable[[Value], Value]) -> OpCall:
        """Return the call with ``change`` applied to each of its tensor arguments."""
        names = {name: change(value) for name, value in self.names.items()}
        return replace(self, tensors=tuple(map(change, self.tensors)), names=names)


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module's forward method."""

    module: str
    call: int
    parent: tuple[str, int] | None
    class_name: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators of one export or one trace, in order of execution."""

    ops: tuple[OpCall, ...]
    outputs: tuple[Value, ...]
    """Tensors that the run returns, without the key/value cache."""
    cache_outputs: tuple[Value, ...] = ()
    """Keys and values of the cache after the run, which are written but are not activations."""
    calls: tuple[ModuleCall, ...] = ()

    def working(self) -> set[tuple[str, int]]:
        """Return the calls (module, number) that run an operator, directly or in a nested call."""
        parents = {(c.module, c.call): c.parent for c in self.calls}
        found = set[tuple[str, int]]()
        for op in self.ops:
            here: tuple[str, int] | None = (op.module, op.call) if op.name not in _HANDED_ON else None
            while here is not None and here not in found:
                found.add(here)
                here = parents.get(here)
        return found

    def with_calls_of(self, modules: Collection[str]) -> Graph:
        """Return the graph with only the calls of these modules; with all calls if ``modules`` is empty."""
        return replace(self, calls=tuple(c for c in self.calls if c.module in modules)) if modules else self


def path_renamer(prefix: Mapping[str, str]) -> Callable[[str], str | None]:
    """Return a function from module paths inside a wrapper to model paths, and to ``None`` for the wrapper's modules.

    Args:
        prefix: paths from the root by paths inside the wrapper; the longest matching prefix counts.
    """
    longest_first = sorted(prefix.items(), key=lambda kv: -len(kv[0]))

    def rename(path: str) -> str | None:
        for inner, outer in longest_first:
            if path == inner:
                return outer
            if path.startswith(inner + "."):
                rest = path[len(inner) + 1 :]
                return f"{outer}.{rest}" if outer else rest
        return None

    return rename


def rename_modules(graph: Graph, prefix: Mapping[str, str], scaffolding: str) -> Graph:
    """Return the graph with the model's own paths and parameter names, without calls of the wrapper's modules.

    Args:
        prefix: see :func:`path_renamer`.
        scaffolding: prefix for the paths of operators that no entry of ``prefix`` covers.
    """
    rename = path_renamer(prefix)

    def value(old: Value) -> Value:
        return replace(old, name=rename(old.name) or old.name) if old.origin in ("param", "buffer") else old

    def op(old: OpCall) -> OpCall:
        outer = rename(old.module)
        return replace(old.reading(value), module=scaffolding + old.module if outer is None else outer)

    parents = {(c.module, c.call): c.parent for c in graph.calls}

    def parent(of: tuple[str, int] | None) -> tuple[str, int] | None:
        while of is not None:
            outer = rename(of[0])
            if outer is not None:
                return outer, of[1]
            of = parents.get(of)
        return None

    calls = ((rename(c.module), c) for c in graph.calls)
    return Graph(
        ops=tuple(map(op, graph.ops)),
        outputs=tuple(map(value, graph.outputs)),
        cache_outputs=tuple(map(value, graph.cache_outputs)),
        calls=tuple(ModuleCall(p, c.call, parent(c.parent), c.class_name) for p, c in calls if p is not None),
    )


_EXPRESSION: Final = "expression"
"""Key of a JSON object that holds the text of a symbolic size."""


StoredSize = int | dict[str, str]
"""A size in JSON: an integer, or an object with the text of an expression under :data:`_EXPRESSION`."""
StoredValue = tuple[str, list[StoredSize], str, str, str]
StoredOp = tuple[str, str, str, int, list[int], list[int], dict[str, Any], dict[str, int]]
StoredCall = tuple[str, int, tuple[str, int] | None, str]


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A graph in JSON, in which tensors are indices into a table; pydantic validates the types."""

    ops: list[StoredOp]
    outputs: list[int]
    cache: list[int]
    calls: list[StoredCall]


class GraphWriter:
    """Converter of graphs to plain data, which numbers their tensors in a common table."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}

    @property
    def values(self) -> list[Any]:
        """Return all tensors numbered so far, in order."""
        return [[v.id, [to_plain(s) for s in v.shape], v.dtype, v.origin, v.name] for v in self._numbers]

    def numbers(self, values: tuple[Value, ...]) -> list[int]:
        """Return the indices of tensors in the table; new tensors are appended."""
        return [self._numbers.setdefault(v, len(self._numbers)) for v in values]

    def graph(self, graph: Graph) -> dict[str, Any]:
        """Serialize a graph to JSON-compatible data, in which tensors are indices into a separate table.

        Raises:
            TypeError: an argument of an operator is not a number, a string, a size or a list of these.
        """
        return {
            "ops": [self._op(op) for op in graph.ops],
            "outputs": self.numbers(graph.outputs),
            "cache": self.numbers(graph.cache_outputs),
            "calls": [[c.module, c.call, c.parent, c.class_name] for c in graph.calls],
        }

    def _op(self, op: OpCall) -> list[Any]:
        attrs = {name: to_plain(value) for name, value in op.attrs.items()}
        names = {name: self.numbers((value,))[0] for name, value in op.names.items()}
        return [op.label, op.name, op.module, op.call, self.numbers(op.tensors), self.numbers(op.outputs), attrs, names]


class GraphReader:
    """Converter of plain data and a tensor table to graphs."""

    def __init__(self, values: list[StoredValue]) -> None:
        self._values = [
            Value(label, tuple(map(from_plain, shape)), dtype, origin, name)
            for label, shape, dtype, origin, name in values
        ]

    def tensors(self, numbers: list[int]) -> tuple[Value, ...]:
        """Return the tensors with these indices in the table."""
        return tuple(self._values[n] for n in numbers)

    def graph(self, stored: StoredGraph) -> Graph:
        """Return the graph that :meth:`GraphWriter.graph` wrote."""
        calls = tuple(ModuleCall(*call) for call in stored.calls)
        return Graph(tuple(map(self._op, stored.ops)), self.tensors(stored.outputs), self.tensors(stored.cache), calls)

    def _op(self, stored: StoredOp) -> OpCall:
        label, name, module, call, tensors, outputs, attrs, names = stored
        options = {key: from_plain(value) for key, value in attrs.items()}
        named = {key: self._values[n] for key, n in names.items()}
        return OpCall(label, name, module, call, self.tensors(tensors), self.tensors(outputs), options, named)


def to_plain(value: Any) -> Any:
    """Convert a size or an operator argument to plain data.

    Raises:
        TypeError: the value has another type.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [to_plain(v) for v in value]
    if isinstance(value, sympy.Float):
        return float(value)  # an argument computed from sizes; an inexact one would not compare equal when read
    if isinstance(value, sympy.Expr):
        return {_EXPRESSION: text(value)}
    raise TypeError(f"{type(value).__name__} cannot be stored")


def from_plain(value: Any) -> Any:
    """Convert plain data back to a size or an operator argument, the inverse of :func:`to_plain`."""
    if isinstance(value, dict):
        return parse(value[_EXPRESSION])
    return [from_plain(v) for v in value] if isinstance(value, list) else value
