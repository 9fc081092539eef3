"""What modules own: their parameters and buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache

from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode
from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.graph import Graph
from costproof.opgraph.merge import merge_nodes

Parameters = Mapping[str, tuple[tuple[int, ...], str]]
"""Full name -> shape and dtype."""


def held_nodes(
    parameters: Parameters,
    buffers: Mapping[str, int | None],
    stages: Callable[[str], Iterable[str]],
    owners: Mapping[str, str],
    active: Mapping[str, int | None],
) -> list[CostNode]:
    """Return stage-wide nodes: elements and bytes of the parameters, and bytes of the buffers, that each module owns.

    Args:
        buffers: full name -> bytes that are not counted under another name; ``None``: not known.
        stages: module path -> stages that the module works in.
        owners: module path -> class name.
        active: full name -> elements that one token passes, where that is not all of them.
    """
    works_in = cache(stages)
    held: list[tuple[str, dict[Metric, int | None]]] = []
    for name, (shape, dtype) in parameters.items():
        count = math.prod(shape)
        costs: dict[Metric, int | None] = {
            "params": count, "params_active": active.get(name, count), "weight_bytes": count * ITEM_BYTES[dtype],
        }  # fmt: skip
        held.append((name, costs))
    held += [(name, {"buffer_bytes": size}) for name, size in buffers.items() if size != 0]
    return list(
        merge_nodes(
            CostNode(stage, "", module, "", costs, owner=owners.get(module, ""))
            for name, costs in held
            for module in (name.rpartition(".")[0],)
            for stage in works_in(module)
        )
    )


def read_parameters(graph: Graph) -> frozenset[str]:
    """Full names of the parameters that operators of a graph take."""
    return frozenset(v.name for op in graph.ops for v in op.tensors if v.origin == "param")


def unread_modules(parameters: Iterable[str], read: Collection[str]) -> tuple[str, ...]:
    """The outermost modules that own parameters, inside them or in their parts, of which none was read."""
    used = {path for name in read for path in _around(name)}
    found = dict.fromkeys(
        next((path for path in _around(name) if path not in used), "") for name in parameters if name not in read
    )
    return tuple(path for path in found if path)


def _around(name: str) -> list[str]:
    """Paths of the modules around a parameter, the outermost first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def with_owners(nodes: Iterable[CostNode], owners: Mapping[str, str]) -> tuple[CostNode, ...]:
    """The nodes with their modules' class names, which a structure-only trace does not have."""
    return tuple(node if node.owner else replace(node, owner=owners.get(node.module, "")) for node in nodes)
