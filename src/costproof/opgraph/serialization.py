"""Convert graphs to plain JSON data and back, with each tensor stored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sympy

from costproof.algebra.symbols import parse, text
from costproof.opgraph.graph import Graph, ModuleCall, OpCall, Value

_EXPRESSION: Final = "expression"
"""Key that marks an object in JSON as a symbolic size, among plain values."""


StoredSize = int | dict[str, str]
"""An integer, or the text of an expression under :data:`_EXPRESSION`."""
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
    """Converts graphs to plain data, and numbers their tensors in a common table."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}

    @property
    def values(self) -> list[Any]:
        """Return all tensors numbered so far, in order."""
        return [[v.id, [to_plain(s) for s in v.shape], v.dtype, v.origin, v.name] for v in self._numbers]

    def numbers(self, values: tuple[Value, ...]) -> list[int]:
        """Return the indices of tensors in the table; tensors that it lacks are appended."""
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
    """Restores graphs from plain data and the table of their tensors."""

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
    """Return a size or an operator argument as plain data.

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
    """Return the value that :func:`to_plain` converted."""
    if isinstance(value, dict):
        return parse(value[_EXPRESSION])
    return [from_plain(v) for v in value] if isinstance(value, list) else value
