"""What modules own: their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from costproof.graph.graph import ITEM_BYTES
from costproof.ledger.node import CostNode, exact_sum

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
    passed: dict[str, int | None] = {}
    elements: dict[str, int] = {}
    size: dict[str, int] = {}
    for name, (shape, dtype) in parameters.items():
        module = name.rpartition(".")[0]
        count = math.prod(shape)
        elements[module] = elements.get(module, 0) + count
        size[module] = size.get(module, 0) + count * ITEM_BYTES[dtype]
        passed[module] = exact_sum((passed.get(module, 0), active.get(name, count)))
    return [
        CostNode(
            stage,
            "",
            module,
            "",
            {"params": elements[module], "params_active": passed[module], "weight_bytes": size[module]},
            owner=owners.get(module, ""),
        )
        for module in elements
        for stage in stages(module)
    ]


def with_owners(nodes: Iterable[CostNode], owners: Mapping[str, str]) -> tuple[CostNode, ...]:
    """The nodes with their modules' class names, which a structure-only trace does not have."""
    return tuple(node if node.owner else replace(node, owner=owners.get(node.module, "")) for node in nodes)
