"""What modules own: their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

from costproof.graph.graph import ITEM_BYTES
from costproof.graph.merge import merge_nodes
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode

Parameters = Mapping[str, tuple[tuple[int, ...], str]]
"""Full name -> shape and dtype."""


def parameter_nodes(
    parameters: Parameters,
    stages: Callable[[str], Iterable[str]],
    owners: Mapping[str, str],
    active: Mapping[str, int | None],
) -> list[CostNode]:
    """Stage-wide nodes: elements and bytes of the parameters that each module owns.

    Args:
        stages: module path -> stages that the module works in.
        owners: module path -> class name.
        active: full name -> elements that one token passes, where that is not all of them.
    """
    works_in = cache(stages)
    nodes = []
    for name, (shape, dtype) in parameters.items():
        module, count = name.rpartition(".")[0], math.prod(shape)
        costs: dict[Metric, int | None] = {
            "params": count, "params_active": active.get(name, count), "weight_bytes": count * ITEM_BYTES[dtype],
        }  # fmt: skip
        nodes += [CostNode(stage, "", module, "", costs, owner=owners.get(module, "")) for stage in works_in(module)]
    return list(merge_nodes(nodes))


def with_owners(nodes: Iterable[CostNode], owners: Mapping[str, str]) -> tuple[CostNode, ...]:
    """The nodes with their modules' class names, which a structure-only trace does not have."""
    return tuple(node if node.owner else replace(node, owner=owners.get(node.module, "")) for node in nodes)
