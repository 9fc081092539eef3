"""Sums over decode steps, of which some were counted or one in symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import FLOOR, Metric
from costproof.ledger.node import CostNode, exact_sum
from costproof.ledger.series import STEPS, sum_over_steps
from costproof.ledger.symbols import text
from costproof.opgraph.merge import expression


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step that was traced."""

    context: int
    """Tokens in the cache before it."""
    nodes: tuple[CostNode, ...]
    tables: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Parameters of which it looks up rows, as of :func:`~costproof.opgraph.reuse.partly_read`."""


def over_steps(steps: Sequence[Step], count: int) -> tuple[list[CostNode], list[str]]:
    """Costs of ``count`` decode steps from the traced ones: the first, a middle one and the last.

    With up to two steps all are traced. With more, a cost f that is a straight line through the
    traced steps sums to count * (f_first + f_last) / 2; any other is unknown, with a note. The floor bends where the
    rows that are looked up in a table are more than it has: then rows and the rest are straight lines.
    """
    if not steps:
        return [], []
    by_id: list[dict[str, CostNode]] = [{n.id: n for n in step.nodes} for step in steps]
    at = [step.context - steps[0].context for step in steps]
    result: list[CostNode] = []
    notes: list[str] = []
    for node_id in dict.fromkeys(i for nodes in by_id for i in nodes):
        present = [nodes.get(node_id) for nodes in by_id]
        node = next(n for n in present if n is not None)
        costs: dict[Metric, int | None] = {}
        for metric in dict.fromkeys(m for n in present if n is not None for m in n.costs):
            values = [0 if n is None else n.cost(metric) for n in present]
            costs[metric] = _line_sum(values, at, count)
            if costs[metric] is None and metric == FLOOR:
                costs[metric] = _floor_sum(values, [step.tables for step in steps], at, count)
            if costs[metric] is None:
                notes.append(f"{node_id}: {metric} of the traced decode steps is not a straight line: {values}")
        result.append(replace(node, costs=costs, exprs={}))
    return result, notes


def every_step(node: CostNode) -> CostNode:
    """Costs of N steps, from those of the step at context P as expressions.

    Raises:
        Incomplete: a cost has no closed sum: a table of positions is cut off at its end, say.
    """
    costs: dict[Metric, int | None] = {}
    exprs: dict[Metric, str] = {}
    for metric in dict.fromkeys((*node.costs, *node.exprs)):
        one = expression(node, metric)
        if one is None:
            costs[metric] = None
            continue
        try:
            exprs[metric] = text(sum_over_steps(one) if one.free_symbols else one * STEPS)
        except BadInput as error:
            raise Incomplete(error.what, where=f"{metric} of {node.id}", got=text(one)) from error
    return replace(node, costs=costs, exprs=exprs)


def _line_sum(values: Sequence[int | None], at: Sequence[int], count: int) -> int | None:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    if len(known) == count:
        return sum(known)
    straight = all((v - known[0]) * at[-1] == (known[-1] - known[0]) * x for v, x in zip(known, at, strict=True))
    doubled = count * (known[0] + known[-1])
    return doubled // 2 if straight and doubled % 2 == 0 else None


def _floor_sum(
    values: Sequence[int | None], tables: Sequence[Mapping[str, tuple[int, int]]], at: Sequence[int], count: int
) -> int | None:
    """The sum of what is moved at least, where more and more rows are looked up in tables that are read once."""
    whole = {name: size for found in tables for name, (_, size) in found.items()}
    rows = {name: [found.get(name, (size, size))[0] for found in tables] for name, size in whole.items()}
    once = [sum(min(size, rows[name][i]) for name, size in whole.items()) for i in range(len(at))]
    rest = _line_sum([None if v is None else v - o for v, o in zip(values, once, strict=True)], at, count)
    looked_up = [_full_sum(rows[name], size, at, count) for name, size in whole.items()]
    return exact_sum((rest, *looked_up))


def _full_sum(values: Sequence[int], most: int, at: Sequence[int], count: int) -> int | None:
    """The sum of the values of a straight line of steps that does not fall, each at most ``most``."""
    first, last, length = values[0], values[-1], at[-1]
    step, odd = divmod(last - first, length)
    if odd or step < 0 or any(v != first + step * x for v, x in zip(values, at, strict=True)):
        return None
    if step == 0:
        return count * min(first, most)
    below = min(count, max(0, (most - first) // step + 1))
    return below * first + step * (below * (below - 1) // 2) + (count - below) * most
