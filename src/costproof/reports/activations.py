"""Activation bytes from the callgraph: per module, per family of modules, along a path.

What counts is what the callgraph saw go in and out of a module as tensors: floating-point, each
tensor of a call once, caches left out. That is the view of a caller. It is not the traffic of the
ledgers (``input_bytes``, ``output_bytes`` of a cost node), which is that of a module's own operators:
a container gives the same tensor as its last child, and both have its bytes here.

A callgraph tells about first calls unless it was made with ``--all-calls``. What all calls together
give is known only if it tells about all of them, or if there was one; else it is ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from costproof.compare.patterns import patterns
from costproof.ledger.callgraph import CallGraph, PlainAt, ValueAt
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.node import exact_sum
from costproof.ledger.workload import FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class Activation:
    """Bytes of one module, or of a family of modules together; ``None`` is unknown."""

    module: str
    """Path, or the pattern of a family: ``layers.[0-11]``."""
    type: str
    """Class; of a family the classes, joined with ``|``."""
    modules: int
    calls: int
    first_input_bytes: int | None
    """Bytes that go into the first call; of a family, into the first calls of all members."""
    first_output_bytes: int | None
    """Bytes that come out of it."""
    input_bytes: int | None
    """Bytes that go into all calls."""
    output_bytes: int | None
    """Bytes that come out of all calls."""


@dataclass(frozen=True, slots=True)
class ActivationTable:
    """Rows in the order of the callgraph, or of the path that was asked for."""

    by: str
    """``module``, ``family`` or ``path``."""
    rows: tuple[Activation, ...]

    @property
    def output_bytes(self) -> int | None:
        """What all rows give together; meaningful where no row contains another."""
        return exact_sum(row.output_bytes for row in self.rows)

    @property
    def peak(self) -> Activation | None:
        """The row whose first calls give most."""
        return max(self.rows, key=lambda r: r.first_output_bytes or 0, default=None)


_BYTES: Final = ("first_input_bytes", "first_output_bytes", "input_bytes", "output_bytes")


def by_module(graph: CallGraph) -> ActivationTable:
    """One row per module that was called."""
    return ActivationTable("module", tuple(_row(graph, path) for path in graph.call_counts))


def by_family(graph: CallGraph) -> ActivationTable:
    """One row per pattern of modules that differ in numbers only, and have one class."""
    rows = {path: _row(graph, path) for path in graph.call_counts}
    first = {path: i for i, path in enumerate(rows)}
    classes: dict[str, list[str]] = {}
    for path in rows:
        classes.setdefault(graph.module_types.get(path, ""), []).append(path)
    families = [family for paths in classes.values() for family in patterns(paths)]
    families.sort(key=lambda family: first[family[1][0]])
    return ActivationTable("family", tuple(_together(name, [rows[p] for p in paths]) for name, paths in families))


def along(graph: CallGraph, path: Sequence[str]) -> ActivationTable:
    """One row per module of a path, in its order: a chain of data edges, or callers from the root down.

    Raises:
        BadInput: a module of the path was never called.
    """
    for module in path:
        if module not in graph.call_counts:
            raise BadInput(
                "no such module in the callgraph",
                where=module,
                expected="a module that was called",
                fix=did_you_mean(module, graph.call_counts),
            )
    return ActivationTable("path", tuple(_row(graph, module) for module in path))


def callers(graph: CallGraph, module: str) -> tuple[str, ...]:
    """The path of callers from the root to a module; the first one where there are several."""
    above: dict[str, str] = {}
    for edge in graph.edges:
        caller, _, callee = edge.partition("->")
        if caller != callee:
            above.setdefault(callee, caller)
    found = [module]
    while found[-1] in above and above[found[-1]] not in found:
        found.append(above[found[-1]])
    return tuple(reversed(found))


def tensor_bytes(values: Iterable[ValueAt]) -> int | None:
    """Bytes of the activations among the values of a call; ``None`` if some were left out."""
    total = 0
    for value in values:
        if isinstance(value, PlainAt):
            if value.kind == "left out":
                return None
        elif value.kind == "tensor":
            total += prod(value.shape) * FLOAT_BYTES.get(value.dtype, 0)
    return total


def _row(graph: CallGraph, path: str) -> Activation:
    calls = graph.call_counts[path]
    taken, given = graph.input_metadata.get(path), graph.output_metadata.get(path)
    return Activation(
        module=path,
        type=graph.module_types.get(path, ""),
        modules=1,
        calls=calls,
        first_input_bytes=_first(taken),
        first_output_bytes=_first(given),
        input_bytes=_all(taken, calls),
        output_bytes=_all(given, calls),
    )


def _first(values: Sequence[ValueAt] | None) -> int | None:
    if values is None:
        return None
    return tensor_bytes(v for v in values if v.call == min(w.call for w in values))


def _all(values: Sequence[ValueAt] | None, calls: int) -> int | None:
    """Known if every call is told about: a call without any value cannot be told from one that was not kept."""
    if values is None or len({v.call for v in values}) != calls:
        return None
    return tensor_bytes(values)


def _together(name: str, rows: Sequence[Activation]) -> Activation:
    return Activation(
        module=name,
        type="|".join(dict.fromkeys(row.type for row in rows)),
        modules=len(rows),
        calls=sum(row.calls for row in rows),
        **{name: exact_sum(getattr(row, name) for row in rows) for name in _BYTES},
    )
