"""Sums over decode steps, of which some were counted or one in symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costproof.graph.merge import expression
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode
from costproof.ledger.series import STEPS, sum_over_steps
from costproof.ledger.symbols import text


def over_steps(steps: Sequence[tuple[int, tuple[CostNode, ...]]], count: int) -> tuple[list[CostNode], list[str]]:
    """Costs of ``count`` decode steps from the traced ones: (context, nodes) of first, middle and last.

    With up to two steps all are traced. With more, a cost f that is a straight line through the
    traced steps sums to count * (f_first + f_last) / 2; any other is unknown, with a note.
    """
    if not steps:
        return [], []
    by_id: list[dict[str, CostNode]] = [{n.id: n for n in nodes} for _, nodes in steps]
    first, last = steps[0][0], steps[-1][0]
    result: list[CostNode] = []
    notes: list[str] = []
    for node_id in dict.fromkeys(i for nodes in by_id for i in nodes):
        present = [nodes.get(node_id) for nodes in by_id]
        node = next(n for n in present if n is not None)
        costs: dict[Metric, int | None] = {}
        for metric in dict.fromkeys(m for n in present if n is not None for m in n.costs):
            values = [0 if n is None else n.cost(metric) for n in present]
            costs[metric] = _line_sum(values, [c - first for c, _ in steps], last - first, count)
            if costs[metric] is None:
                notes.append(f"{node_id}: {metric} of the traced decode steps is not a straight line: {values}")
        result.append(replace(node, costs=costs, exprs={}))
    return result, notes


def every_step(node: CostNode) -> CostNode:
    """Costs of N steps, from those of the step at context P as expressions.

    Raises:
        Incomplete: a cost has no closed sum: a table of positions is cut off at its end, say.
    """
    exprs: dict[Metric, str] = {}
    for metric in dict.fromkeys((*node.costs, *node.exprs)):
        one = expression(node, metric)
        if one is None:
            return replace(node, costs={metric: None})
        try:
            exprs[metric] = text(sum_over_steps(one) if one.free_symbols else one * STEPS)
        except BadInput as error:
            raise Incomplete(error.what, where=f"{metric} of {node.id}", got=text(one)) from error
    return replace(node, costs={}, exprs=exprs)


def _line_sum(values: Sequence[int | None], at: Sequence[int], length: int, count: int) -> int | None:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    if len(known) == count:
        return sum(known)
    straight = all((v - known[0]) * length == (known[-1] - known[0]) * x for v, x in zip(known, at, strict=True))
    doubled = count * (known[0] + known[-1])
    return doubled // 2 if straight and doubled % 2 == 0 else None
