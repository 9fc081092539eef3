"""Represent an executed or exported graph as operator calls on shaped values.

Both graph sources, ``torch.export`` and TorchLens, are converted to this form and costed by the same rules. Shapes are
integers (a trace) or sympy expressions (an export with symbolic sizes). The module needs no torch, so rules can be
tested on hand-made calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import sympy

Size: TypeAlias = int | sympy.Expr


_HANDED_ON: Final = frozenset({"identity"})
"""What a trace writes where a module returns what it got."""


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor: an input, a parameter, a buffer, or what an operator returned."""

    id: str
    shape: tuple[Size, ...]
    dtype: str
    """Without the ``torch.`` prefix: ``bfloat16``."""
    origin: str = "op"
    """``op``, ``input``, ``cache`` (an input that a cache held before), ``param``, ``buffer`` or ``const``."""
    name: str = ""
    """Full name of a parameter or buffer, as ``named_parameters`` of the root gives it."""

    @property
    def floating(self) -> bool:
        """Whether the tensor holds floating-point numbers: only those do FLOPs and are activations."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


AUTOCAST: Final = "autocast"
"""Among the arguments of an operator under autocast, the dtype that its products are cast to."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of one operator."""

    label: str
    """Unique in its graph: the export's node name, or TorchLens's label."""
    name: str
    """The operator in the source's own words: ``aten.linear.default``, ``scaled_dot_product_attention``."""
    module: str
    """Path of the innermost module that runs it, from the root of the model; empty for the root."""
    call: int
    """Which call of that module, from 1."""
    tensors: tuple[Value, ...]
    """Tensor arguments in the order of the operator's signature, parameters included, lists flattened.
    A tensor that is passed twice stands twice."""
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments that a rule needs, by the names of the operator's signature: ``equation``,
    ``mode``, ``transposed``, ``dim``, ``other`` (a scalar second operand) …"""
    names: Mapping[str, Value] = field(default_factory=dict)
    """Tensor arguments by the names of the signature, where the source knows them (``attn_mask``)."""

    def reading(self, change: Callable[[Value], Value]) -> OpCall:
        """The call with its tensor arguments changed."""
        names = {name: change(value) for name, value in self.names.items()}
        return replace(self, tensors=tuple(map(change, self.tensors)), names=names)


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module's forward."""

    module: str
    call: int
    parent: tuple[str, int] | None
    class_name: str


@dataclass(frozen=True, slots=True)
class Graph:
    """What one export or one trace contains, in order of execution."""

    ops: tuple[OpCall, ...]
    outputs: tuple[Value, ...]
    """What the run returns, without the key/value cache."""
    cache_outputs: tuple[Value, ...] = ()
    """Keys and values of the cache after the run: written, but not counted as activations."""
    calls: tuple[ModuleCall, ...] = ()

    def working(self) -> set[tuple[str, int]]:
        """The calls (module, number) in which an operator runs, their own or one of a call inside."""
        parents = {(c.module, c.call): c.parent for c in self.calls}
        found = set[tuple[str, int]]()
        for op in self.ops:
            here: tuple[str, int] | None = (op.module, op.call) if op.name not in _HANDED_ON else None
            while here is not None and here not in found:
                found.add(here)
                here = parents.get(here)
        return found

    def with_calls_of(self, modules: Collection[str]) -> Graph:
        """The graph with the calls of these modules alone; with all, if none is named."""
        return replace(self, calls=tuple(c for c in self.calls if c.module in modules)) if modules else self


def renamer(prefix: Mapping[str, str]) -> Callable[[str], str | None]:
    """From paths inside a wrapper to paths from the model's root; ``None`` for scaffolding.

    Args:
        prefix: paths inside -> paths from the root; the longest prefix wins.
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


def renamed(graph: Graph, prefix: Mapping[str, str], scaffolding: str) -> Graph:
    """The graph with the model's own paths and parameter names; calls of scaffolding are left out.

    Args:
        prefix: as of :func:`renamer`.
        scaffolding: stands before the paths of operators that are under no prefix.
    """
    rename = renamer(prefix)

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
