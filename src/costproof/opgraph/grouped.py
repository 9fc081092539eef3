"""Modules of which the data decides which run, counted together on the module that holds them.

A mixture of experts with one module per expert runs those that received tokens. What each of them
costs is decided by the router; what all of them cost together is not. So their costs stand on the
container, where a formula can know them, and who ran how often stands in the callgraph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from costproof.ledger.metrics import FLOOR, UNFUSED, Metric
from costproof.ledger.node import CostNode, exact_sum
from costproof.opgraph.merge import merge_nodes

Groups = Mapping[str, tuple[int, ...]]
"""Path of the module that holds the others -> rows that each of them receives in the run."""
READING: Final[tuple[Metric, ...]] = ("weight_read_bytes", UNFUSED)
"""What the weights that are read belong to."""


def group_costs(nodes: Iterable[CostNode], groups: Groups) -> tuple[CostNode, ...]:
    """Costs of one run with those of grouped modules on their groups, without their calls.

    Weights read count min(E, rows) of E experts, as for every kernel of experts (docs/conventions.md);
    the trace shows those that rows reached, so it is scaled up from these. Experts are alike: a share
    that is not a whole number of bytes makes the number unknown. The floor of their stage reads as many.
    """
    found, inside = _split(nodes, groups)
    unseen: dict[tuple[str, str], list[int | None]] = {}
    for node in merge_nodes(replace(n, costs={m: v for m, v in n.costs.items() if m != "calls"}) for n in inside):
        read = node.cost("weight_read_bytes")
        if read:
            rows = groups[node.module]
            bound, rest = divmod(read * min(len(rows), sum(rows)), sum(1 for r in rows if r))
            more = None if rest else bound - read
            unseen.setdefault((node.stage, node.invocation), []).append(more)
            node = _with(node, READING, [more])
        if node.costs:
            found.append(node)
    return tuple(_with(n, (FLOOR,), unseen.get((n.stage, n.invocation), ())) if n.module == "" else n for n in found)


def group_parameters(nodes: Iterable[CostNode], groups: Groups, positions: int) -> tuple[CostNode, ...]:
    """Stage-wide nodes with the parameters of grouped modules on their groups.

    Of E experts' parameters one token passes rows / (positions E): as many experts as rows per position.

    Args:
        positions: how many tokens passed the router.
    """
    found, inside = _split(nodes, groups)
    for node in merge_nodes(inside):
        rows = groups[node.module]
        held = node.cost("params")
        share, rest = divmod((held or 0) * sum(rows), positions * len(rows))
        active = None if rest or held is None else share
        found.append(replace(node, costs={**node.costs, "params_active": active}))
    return tuple(found)


def _with(node: CostNode, metrics: Iterable[Metric], more: Iterable[int | None]) -> CostNode:
    """A node with more of some metrics, where it has them."""
    added = {m: exact_sum((node.cost(m), *more)) for m in metrics if m in node.costs}
    return replace(node, costs=node.costs | added)


def _split(nodes: Iterable[CostNode], groups: Groups) -> tuple[list[CostNode], list[CostNode]]:
    """Nodes of modules in no group, and those of the others, on their groups."""
    found: list[CostNode] = []
    inside: list[CostNode] = []
    for node in nodes:
        group = next((g for g in groups if node.module.startswith(g + ".")), None)
        if group is None:
            found.append(node)
        else:
            inside.append(replace(node, module=group, owner="experts"))
    return found, inside
