"""Paths of modules: those inside a wrapper, brought to those of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from costproof.opgraph.graph import Graph, ModuleCall, OpCall, Value


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
